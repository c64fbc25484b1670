"""What runs when: the decisions of one moment, and who carries them out."""
