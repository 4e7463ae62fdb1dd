BEGIN TRANSACTION;
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "about" VALUES('format','2');
INSERT INTO "about" VALUES('version','0.3.0.dev0');
CREATE TABLE attempts (
    token TEXT PRIMARY KEY, run TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL,
    record TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "attempts" VALUES('t1','a',1,'ended','{"run":"a","number":1,"token":"t1","state":"ended","intended":2.0,"reason":"first attempt","job":"17","host":"node1","queued":2.1,"started":2.9,"ended":62.9,"outcome":"evicted","detail":"evicted by the cluster","account":{"slot":60.0,"spans":[["claim",0.1],["stage",2.0],["compute",57.0]],"saves":[[30.0,7]],"saved":{"times":1,"seconds":0.5,"slowest":0.5},"loaded":true,"notes":["slow disk"],"data":[{"name":"train.tar","arrived":true,"seconds":1.5,"bytes":1000,"sources":["c.example.org"],"troubles":{"stalled":{"count":1,"bytes":10,"seconds":0.5}}}],"tail":["Traceback","ValueError: x"]}}');
INSERT INTO "attempts" VALUES('t2','a',2,'queued','{"run":"a","number":2,"token":"t2","state":"queued","intended":64.0,"reason":"attempt 1 ended as evicted; continue","avoid":["node1"],"job":"18","queued":64.1,"waits":"Priority","waits_since":65.0,"waits_changed":1}');
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL, token TEXT,
    data TEXT NOT NULL);
INSERT INTO "entries" VALUES(1,1.0,'a','added',NULL,'{"position":0,"spec":1,"params":{"lr":"1e-3"}}');
INSERT INTO "entries" VALUES(2,1.0,'b','added',NULL,'{"position":1,"spec":1,"params":{"lr":"1e-2"}}');
INSERT INTO "entries" VALUES(3,1.0,'c','added',NULL,'{"position":2,"spec":1,"params":{}}');
INSERT INTO "entries" VALUES(4,2.0,'a','intended','t1','{"number":1,"reason":"first attempt","avoid":[]}');
INSERT INTO "entries" VALUES(5,2.1,'a','queued','t1','{"job":"17"}');
INSERT INTO "entries" VALUES(6,3.0,'a','started','t1','{"host":"node1","started":2.9,"restarts":0}');
INSERT INTO "entries" VALUES(7,63.0,'a','ended','t1','{"outcome":"evicted","detail":"evicted by the cluster","started":2.9,"ended":62.9,"host":"node1","step":7,"changed":true,"computed":1,"account":{"slot":60.0,"spans":[["claim",0.1],["stage",2.0],["compute",57.0]],"saves":[[30.0,7]],"saved":{"times":1,"seconds":0.5,"slowest":0.5},"loaded":true,"notes":["slow disk"],"tail":["Traceback","ValueError: x"],"data":[{"name":"train.tar","arrived":true,"seconds":1.5,"bytes":1000,"sources":["c.example.org"],"troubles":{"stalled":{"count":1,"bytes":10,"seconds":0.5}}}]}}');
INSERT INTO "entries" VALUES(8,64.0,'a','intended','t2','{"number":2,"reason":"attempt 1 ended as evicted; continue","avoid":["node1"]}');
INSERT INTO "entries" VALUES(9,64.1,'a','queued','t2','{"job":"18"}');
INSERT INTO "entries" VALUES(10,65.0,'a','waits','t2','{"reason":"Priority"}');
INSERT INTO "entries" VALUES(11,66.0,'b','failed',NULL,'{"reason":"the scheduler refused the job"}');
INSERT INTO "entries" VALUES(12,67.0,'c','cancel-asked',NULL,'{"reason":"cancelled by the user"}');
INSERT INTO "entries" VALUES(13,68.0,'c','cancelled',NULL,'{"reason":"cancelled by the user"}');
CREATE TABLE lease (
    only INTEGER PRIMARY KEY CHECK (only = 1), epoch INTEGER NOT NULL, holder TEXT NOT NULL);
INSERT INTO "lease" VALUES(1,1,'{"host": "login1", "boot": "b", "pid": 7, "born": 9, "since": 1.0, "beat": 2.0, "purpose": "up"}');
CREATE TABLE requests (name TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
INSERT INTO "requests" VALUES('1-a.json',1.0);
CREATE TABLE runs (
    name TEXT PRIMARY KEY, position INTEGER NOT NULL, state TEXT NOT NULL,
    record TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "runs" VALUES('a',0,'active','{"name":"a","position":0,"spec":1,"params":{"lr":"1e-3"},"state":"active","added":1.0,"since":1.0,"reason":"attempt 1 ended as evicted; continue","attempts":2,"ran":1,"current":"t2","last":{"number":1,"token":"t1","outcome":"evicted","detail":"evicted by the cluster","at":63.0,"host":"node1","step":7,"progressed":true,"computed":true,"cause":"cluster"},"best_step":7,"observed":57.0,"interruptions":1,"save_blocked":0.0,"save_durable":0.5,"saved":true}');
INSERT INTO "runs" VALUES('b',1,'failed','{"name":"b","position":1,"spec":1,"params":{"lr":"1e-2"},"state":"failed","added":1.0,"since":1.0,"reason":"the scheduler refused the job"}');
INSERT INTO "runs" VALUES('c',2,'cancelled','{"name":"c","position":2,"spec":1,"params":{},"state":"cancelled","added":1.0,"since":1.0,"reason":"cancelled by the user","cancel_asked":"cancelled by the user"}');
CREATE TABLE specs (number INTEGER PRIMARY KEY, record TEXT NOT NULL UNIQUE);
INSERT INTO "specs" VALUES(1,'{"name":"digits","command":"python train.py --lr {lr}","code":["train.py"],"cluster":"local","profile":{},"resources":{"cpus":1,"gpus":0,"memory":2000000000,"disk":5000000000,"time":3600.0},"parallel":null,"outputs":[{"path":"m.npz","key":null,"at_least":null,"at_most":null,"check":null}],"other_outputs":2000000000,"data":[],"limits":{"attempts":50,"without_progress":3,"total":1209600.0,"start_over":false,"memory":null,"disk":null,"time":null},"checkpoints":{"keep":3,"grace":30.0,"signal":"TERM","every":null,"shortest":10.0,"longest":3600.0},"environment":{"PATH":"/usr/bin"},"env":{},"env_files":{},"code_sha256":""}');
CREATE INDEX entries_of_run ON entries (run);
CREATE INDEX live_runs ON runs (state, position);
CREATE INDEX attempts_of_run ON attempts (run, number);
COMMIT;
