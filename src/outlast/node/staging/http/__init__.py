"""One request over HTTP/1.1 and its answer, with nothing but the standard library.

url          an http(s) URL, taken apart, that can be shown
limits       how long to wait for what
proxies      which proxy the environment asks for
trust        which certificates prove who a server is
addresses    a host's name becomes a connected socket
connection   that socket, with TLS and proxy; closed from any thread
stream       bytes and lines that arrive over it
frames       where a body ends
answer       status and headers
request      one request, one answer; redirects are not followed
statuses     what an answer's status means for a fetch
vouchers     what an answer's headers say of the file
"""
