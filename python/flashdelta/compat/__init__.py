"""Drop-in replacements: the functions of other packages, with their names, arguments, layouts and return values.

`compat.fla`, `compat.flash_qla`, `compat.flashinfer` and `compat.flash_attn` stand for those packages. Where they and
flashdelta differ (an argument that is not supported), the call raises and names what would be; nothing is ignored.
"""
