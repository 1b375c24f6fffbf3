"""Writes src/gpumem/_declarations.py from the C headers: constants, structures, and the signature
of every function.

    python declare.py [--check] [INCLUDE-FOLDER]

--check writes nothing and fails where the file is not what the headers say. A test does the same.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent / "include" / "gpumem"
OUTPUT = HERE / "src" / "gpumem" / "_declarations.py"

SCALARS = {
    "uint8_t": "c_uint8", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64",
    "size_t": "c_size_t", "ssize_t": "c_ssize_t", "int": "c_int", "double": "c_double", "char": "c_char",
    "gpumem_status": "c_int32",
}
# Callbacks are passed as addresses; the modules that have some say their types.
HANDLES = {"gpumem_stream", "gpumem_arena", "gpumem_reservation", "gpumem_capture", "gpumem_plan", "gpumem_token",
           "gpumem_host_blocks", "gpumem_stream_pool", "gpumem_sim_graph", "gpumem_overdraw_callback", "gpumem_free_user",
           "gpumem_out_of_memory_callback", "gpumem_progress", "gpumem_visitor", "gpumem_event_callback",
           "gpumem_stack_callback"}


def ctype(text, structures, returned=False):
    """The ctypes expression of a C type."""
    words = [w for w in text.replace("*", " * ").split() if w not in ("const", "struct")]
    stars = words.count("*")
    base = " ".join(w for w in words if w != "*")
    if stars == 0:
        if base == "void":
            return "None"
        if base in HANDLES:
            return "c_void_p"
        if base in structures:
            return base
        return SCALARS[base]
    if base == "char" and stars == 1:
        # Text to be filled comes as an array; text that is read or returned as bytes.
        return "c_char_p"
    # Everything else by address: byref, an array, or an integer.
    return "c_void_p"


def strip_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def headers(folder):
    return {p.name: strip_comments(p.read_text()) for p in sorted(folder.glob("*.h"))}


def constants(texts):
    found = {}
    for text in texts.values():
        for name, value in re.findall(r"^#define (GPUMEM_\w+)[ \t]+(\S.*?)\s*$", text, flags=re.M):
            value = value.replace("UINT64_MAX", "0xffff_ffff_ffff_ffff")
            if re.fullmatch(r"-?(0x)?[0-9a-f_]+", value):
                found[name.removeprefix("GPUMEM_")] = value
            elif m := re.fullmatch(r"GPUMEM_STREAM_NUMBER\((\d)\)", value):
                found[name.removeprefix("GPUMEM_")] = m[1]
    del found["STREAM_DEFAULT"]
    return found


def structures(texts):
    found = {}
    for text in texts.values():
        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \w+;", text, flags=re.S):
            fields = []
            for line in body.split(";"):
                if not line.strip():
                    continue
                m = re.fullmatch(r"\s*(.*?)(\w+)(?:\[(\d+)\])?\s*", line, flags=re.S)
                fields.append((m[2], m[1].strip(), m[3]))
            found[name] = fields
    return found


def functions(texts):
    found = {}
    for text in texts.values():
        text = re.sub(r"typedef struct \w+ \{.*?\} \w+;", "", text, flags=re.S)
        text = re.sub(r"^#.*?$(?<!\\)", "", text, flags=re.M)
        text = re.sub(r"typedef [^;]*;", "", text)
        for result, name, parameters in re.findall(r"([\w *]+?)\b(gpumem_\w+)\(([^()]*)\);", text):
            parts = [p.strip() for p in parameters.split(",")]
            types = [] if parts == ["void"] else [re.fullmatch(r"(.*?)\w+", p, flags=re.S)[1] for p in parts]
            # An array as a parameter is a pointer.
            found[name] = (result.strip(), types)
    return found


def text(folder):
    texts = headers(folder)
    kinds = structures(texts)
    out = ['"""The C ABI of libgpumem as ctypes sees it. Written by declare.py from include/gpumem/*.h; do not edit."""', "",
           "from ctypes import (Structure, c_char, c_char_p, c_double, c_int, c_int32, c_size_t, c_ssize_t,",
           "                    c_uint32, c_uint64, c_void_p)", ""]
    for name, value in sorted(constants(texts).items()):
        out.append(f"{name} = {value}")
    done = set()

    def write(name):
        if name in done:
            return
        done.add(name)
        fields = []
        for field, kind, length in kinds[name]:
            base = kind.replace("struct ", "").replace("const ", "").strip()
            if base in kinds:
                write(base)
            c = ctype(kind, kinds)
            fields.append(f'        ("{field}", {c}{f" * {length}" if length else ""}),')
        out.extend(["", "", f"class {name}(Structure):", "    _fields_ = [", *fields, "    ]"])

    for name in kinds:
        write(name)
    out.extend(["", "", "# Name: (result, parameters).", "FUNCTIONS = {"])
    for name, (result, types) in sorted(functions(texts).items()):
        shown = ", ".join(ctype(t, kinds) for t in types)
        out.append(f'    "{name}": ({ctype(result, kinds)}, [{shown}]),')
    out.append("}")
    return "\n".join(out) + "\n"


def main(arguments):
    check = "--check" in arguments
    rest = [a for a in arguments if a != "--check"]
    wanted = text(pathlib.Path(rest[0]) if rest else INCLUDE)
    if not check:
        OUTPUT.write_text(wanted)
    elif OUTPUT.read_text() != wanted:
        sys.exit(f"{OUTPUT.name} is not what the headers say; run python {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main(sys.argv[1:])
