"""What every load mode means, in plain Python over lists of dictionaries.

Nothing here is shared with the product: no SQL, no Spark, no import of it. One file per meaning;
``test_oracle.py`` holds cases worked out by hand.
"""
