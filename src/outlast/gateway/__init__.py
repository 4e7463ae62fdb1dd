"""The gateway: requests from a message broker become runs, and every request gets one answer.

A message is recorded as it is, acknowledged, and only then interpreted (`intake`, `request_admission`). A
request becomes a run of its template's experiment (`template_runs`), which is supervised like any other
(`supervision`). What has ended gets an answer (`answering`), which is sent until the broker has confirmed it
(`sending`). `service` does it step by step, `running` repeats that, `assembly` puts the parts together.

requests         the words: deliveries, requests, failures, answers;  settings: gateway.yaml and templates
record/          the SQLite file with all messages, requests and answers: with the journals, the only state
broker/          a thread that moves messages between the broker and this process, and nothing else
message_formats/ bodies of messages to requests, answers to bodies: our own format, CloudEvents, Rodan
configuration/   gateway.yaml and templates, read and checked;  planning/ from a request to a run, and back
answers/         results by value or by reference, uploads;  web_application/ log-in and tokens
monitoring/      audit log, metrics, health;  requester/ a client;  retrying: what the engineer does
"""
