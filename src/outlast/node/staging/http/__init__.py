"""A small HTTP/1.1 client on the standard library: one request, one response, no retries.

request        send one request and read the head of the response; redirects are not followed
body           the bytes of a response's body, from a known offset of the file
headers        which error a status means, and what the headers reveal about the file
response       the response's head and the framing of its body, read from a connection
connect        name resolution, TCP connection, proxy tunnel
connection     one socket, with or without TLS; any thread may close it
tls            the certificates to trust
proxies        the proxy that the environment selects for a URL
url            parsed http and https URLs
http_settings  timeouts and size limits
"""
