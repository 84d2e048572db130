CREATE TABLE shape(id INTEGER PRIMARY KEY, host TEXT NOT NULL, gpus BLOB NOT NULL, first INTEGER NOT NULL);
CREATE INDEX shape_host ON shape(host);
-- which GPUs a host had, each time that they changed
CREATE TABLE told(host TEXT, at INTEGER, shape INTEGER NOT NULL, PRIMARY KEY(host, at)) WITHOUT ROWID;
-- the fleet at a minute, in parts; `ahead` if a clock that ran ahead wrote it
CREATE TABLE minute(
  at INTEGER NOT NULL, part INTEGER NOT NULL, ahead INTEGER NOT NULL DEFAULT 0, block BLOB NOT NULL,
  PRIMARY KEY(at, part));
-- which minutes of an hour are in chunks and sums, as bits: none of them counts again
CREATE TABLE rolled(at INTEGER, part INTEGER, minutes INTEGER NOT NULL, PRIMARY KEY(at, part)) WITHOUT ROWID;
-- a host over a time: step 60 an hour, step 300 a day, step 3600 for 32 days
CREATE TABLE chunk(step INTEGER NOT NULL, at INTEGER NOT NULL, shape INTEGER NOT NULL, block BLOB NOT NULL);
CREATE UNIQUE INDEX chunk_place ON chunk(step, at, shape);
-- days with hours that the longer chunks still lack
CREATE TABLE due(at INTEGER, shape INTEGER, PRIMARY KEY(at, shape)) WITHOUT ROWID;
CREATE TABLE name(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE share(
  day INTEGER, host INTEGER, model INTEGER, person INTEGER,
  used INTEGER NOT NULL, held INTEGER NOT NULL, booked INTEGER NOT NULL, unused INTEGER NOT NULL,
  PRIMARY KEY(day, host, model, person)) WITHOUT ROWID;
CREATE TABLE seen(
  day INTEGER, host INTEGER, model INTEGER,
  seen INTEGER NOT NULL, unknown INTEGER NOT NULL, lost INTEGER NOT NULL, violated INTEGER NOT NULL,
  held INTEGER NOT NULL, busy INTEGER NOT NULL, booked INTEGER NOT NULL, free INTEGER NOT NULL,
  unowned INTEGER NOT NULL, told INTEGER NOT NULL, use INTEGER NOT NULL,
  taken_told INTEGER NOT NULL, taken_use INTEGER NOT NULL,
  PRIMARY KEY(day, host, model)) WITHOUT ROWID;
-- the same by the hour, of all hosts together
CREATE TABLE hour_share(
  at INTEGER, model INTEGER, person INTEGER,
  used INTEGER NOT NULL, held INTEGER NOT NULL, booked INTEGER NOT NULL, unused INTEGER NOT NULL,
  PRIMARY KEY(at, model, person)) WITHOUT ROWID;
CREATE TABLE hour_seen(
  at INTEGER, model INTEGER,
  seen INTEGER NOT NULL, unknown INTEGER NOT NULL, lost INTEGER NOT NULL, violated INTEGER NOT NULL,
  held INTEGER NOT NULL, busy INTEGER NOT NULL, booked INTEGER NOT NULL, free INTEGER NOT NULL,
  unowned INTEGER NOT NULL, told INTEGER NOT NULL, use INTEGER NOT NULL,
  taken_told INTEGER NOT NULL, taken_use INTEGER NOT NULL,
  PRIMARY KEY(at, model)) WITHOUT ROWID;
-- the last run of each GPU (idle_runs)
CREATE TABLE card(
  key TEXT PRIMARY KEY, last INTEGER NOT NULL, run INTEGER NOT NULL, minutes INTEGER NOT NULL,
  told BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX card_run ON card(run, minutes);
-- bookings that nobody used; `place` is the index of the GPU
CREATE TABLE unkept(
  card TEXT, since INTEGER, until INTEGER NOT NULL, host TEXT NOT NULL, key TEXT NOT NULL, place INTEGER,
  model TEXT NOT NULL, who BLOB NOT NULL, minutes INTEGER NOT NULL, PRIMARY KEY(card, since)) WITHOUT ROWID;
CREATE INDEX unkept_until ON unkept(until);
-- health events of GPUs; `place` is their index
CREATE TABLE event(
  host TEXT, number INTEGER, gpu TEXT NOT NULL, place INTEGER, kind TEXT NOT NULL, value BLOB NOT NULL,
  at INTEGER NOT NULL, since INTEGER, until INTEGER, by INTEGER, PRIMARY KEY(host, number)) WITHOUT ROWID;
-- it holds all that queries filter by
CREATE INDEX event_gpu ON event(gpu, at, kind, until, by);
CREATE INDEX event_at ON event(at);
-- health of a host: since when it is watched and away, its last metrics, and what they are compared with
CREATE TABLE counter(
  host TEXT PRIMARY KEY, first INTEGER NOT NULL, away INTEGER, signs BLOB NOT NULL, state BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE done(what TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
