"""Record batches v2: read, check, build, compress. Pure: bytes in, bytes out.

`layout` is the header, `batch` what a broker does to a whole batch, `reader` and `builder` the records inside it.
"""
