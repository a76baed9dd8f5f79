"""How raw samples become arrays: decoding and scaling of images, encoding of table columns, and vocabularies of text.

Models store these in their metadata, so that the same preprocessing runs wherever the model does.
"""
