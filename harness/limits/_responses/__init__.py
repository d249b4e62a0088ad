"""Read what a provider's responses say about its limits: headers, bodies, errors with both.

Nothing here waits, counts or decides. What is read comes out as frozen values, even from a response
that makes no sense.
"""
