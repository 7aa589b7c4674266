"""Jobs on top of the data source, each a function with keyword arguments that gives a summary.

`kbroker spark JOB` is the same from the command line. A job that was killed is started again with the same arguments,
and goes on where it was.
"""
