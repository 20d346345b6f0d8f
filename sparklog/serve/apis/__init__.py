"""The request handlers, in one module per family of APIs."""
