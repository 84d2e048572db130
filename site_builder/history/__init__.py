"""state/history.db: samples of the fleet, minute by minute, and what is read back from them.

In the order of the data:

model         a sample: a fresh host and its GPUs at one moment
block_format  samples packed into the minute of a part of the fleet, and sixty minutes into the hour of a host
usage_sums    the minutes of an hour added up, by person, model and state
buckets       minutes joined into buckets of five minutes and of an hour, and those into chunks of a day and of 32 days
idle_runs     since when each GPU is used, idle or empty
database      the file and its tables
writer        each minute is inserted; an hour that is over becomes chunks and sums, and its minutes are deleted
reader        hosts over time for charts, and usage by day and hour for pages and commands
rollups       sums of the last hours and months for users.html, a little at each build
export        rows for `gpuboard export`
"""
