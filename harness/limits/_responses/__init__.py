"""Read what a provider's responses say of its limits: headers, bodies, and errors that carry both.

Nothing here waits, counts or decides. What is read comes out as frozen values, and a response that
makes no sense is a value too.
"""
