"""Keep a limiter's state in a file that the processes of a machine share."""
