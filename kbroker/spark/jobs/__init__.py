"""Jobs that use the data source. Each is a function with keyword arguments that returns a summary.

`kbroker spark JOB` runs the same function. To resume a job that was killed, start it again with the same arguments.
"""
