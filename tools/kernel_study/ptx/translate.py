"""Translate PTX to C++: every instruction becomes a call of the function of its name in machine.h.

This module does not know what an instruction does. Registers become variables, labels stay labels,
and an instruction that machine.h lacks does not compile.
"""

import re

TYPE = re.compile("[busf](8|16|32|64)|bf16|bf16x2|pred")
REGISTERS = {"pred": "bool", "b16": "u16", "b32": "u32", "b64": "u64", "f32": "u32"}
SPECIAL = {"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x", "%globaltimer"}
# C++ reserves these names.
KEYWORDS = {"and", "or", "xor", "not"}
# Instructions without a result.
EFFECTS = {"red", "prefetch", "nanosleep", "cp"}
# Threads meet at these. Each call passes its line, which shows whether all lanes meet there.
MEETINGS = {"bar", "shfl", "redux", "mma"}
# A GPU's integer units execute these, at half the rate of other instructions.
INTEGER = re.compile(r"^(@!?%\w+ )?(?!ld|st|cvt|atom|red|bra|mov|bar|shfl)\w+(\.\w+)*\.[sub]\d+ ")
STATEMENT = re.compile(r"\s*(?:(\$?\w+):|([{}])|([^;{}]*(?:\{[^{}]*\}[^;{}]*)*);)", re.DOTALL)
ENTRY = re.compile(r"\.entry\s+(\w+)\(\s*\.param \.align (\d+) \.b8 (\w+)\[(\d+)\]\s*\)[^{]*\{")
SHARED = re.compile(r"\.extern \.shared .*?(\w+)\[\];")


def translate(ptx: str, count: bool = False) -> str:
    """Return the kernels of a PTX file as C++ functions of the same names and arguments.

    Args:
        count: count what every thread executes (`Tally` of machine.h).
    Raises:
        ValueError: a kernel, symbol or instruction of a form that is not known.
    """
    # Lines keep their numbers: errors of the C++ report those of the PTX.
    text = re.sub(r"//.*", "", ptx)
    entries = list(ENTRY.finditer(text))
    if not entries or len(entries) != text.count(".entry") or ".func" in text:
        raise ValueError("Not every function is a kernel with one parameter of bytes.")
    parts = ['#include "machine.h"', "using namespace ptx;"]
    for entry in entries:
        parts.append(_Kernel(text, entry, set(SHARED.findall(text))).cpp(count))
    return "\n".join(parts) + "\n"


class _Kernel:
    def __init__(self, text: str, entry: re.Match, shared: set[str]):
        self.name, align, self.parameter, size = entry.groups()
        self.struct = (
            f"struct alignas({align}) Bytes_{self.name} {{ unsigned char bytes[{size}]; }};"
        )
        self.text, self.start, self.shared = text, entry.end(), shared
        self.line = text.count("\n", 0, entry.end()) + 1
        self.local: set[str] = set()  # arrays
        self.named: set[str] = set()  # registers that are declared one by one

    def cpp(self, count: bool) -> str:
        """Return the C++ function."""
        out = [self.struct, f'extern "C" void {self.name}(Bytes_{self.name} params) {{']
        if count:
            out.append("Tally& tally = tally_of_thread();")
        # The instructions since the last jump from or to here are counted.
        head, num, num_integer = len(out) - 1, 0, 0

        def end_block() -> None:
            nonlocal head, num, num_integer
            if count and num:
                out[head] += f" tally.add({num}, {num_integer});"
            head, num, num_integer = len(out), 0, 0

        position, depth = self.start, 1
        while depth:
            match = STATEMENT.match(self.text, position)
            if not match:
                raise ValueError(f"Line {self.line}: {self.text[position : position + 80]!r}")
            lead = match[0][: len(match[0]) - len(match[0].lstrip())]
            self.line += lead.count("\n")
            label, brace, statement = match.groups()
            if label:
                end_block()
                out.append(f"{label.replace('$', '')}:;")
            elif brace:
                depth += 1 if brace == "{" else -1
                out.append(brace)
            else:
                text = " ".join(statement.split())
                if not re.match(r"\.|mov\.\w+ %\w+, %\w+$", text):
                    num, num_integer = num + 1, num_integer + bool(INTEGER.search(text))
                out.append(self.statement(text))
                if "bra" in text or "ret" in text or "bar.sync" in text:
                    end_block()
                    out.append(";")
            self.line += match[0][len(lead) :].count("\n")
            position = match.end()
        return "\n".join(out)

    def statement(self, text: str) -> str:
        """Translate one declaration or instruction."""
        if text.startswith(".pragma"):
            return ""
        if match := re.fullmatch(r"\.reg \.(\w+) %(\w+)<(\d+)>", text):
            kind, name, count = match.groups()
            names = ", ".join(_register(f"%{name}{i}") for i in range(int(count)))
            return f"{REGISTERS[kind]} {names};"
        if match := re.fullmatch(r"\.reg \.(\w+) ([\w%, ]+)", text):
            names = [name.strip() for name in match[2].split(",")]
            self.named |= set(names)
            return f"{REGISTERS[match[1]]} {', '.join(map(_register, names))};"
        if match := re.fullmatch(r"\.local \.align (\d+) \.b8 (\w+)\[(\d+)\]", text):
            self.local.add(match[2])
            return f"alignas({match[1]}) unsigned char {match[2]}[{match[3]}];"
        guard = ""
        if match := re.match(r"@(!?)(%?\w+) ", text):
            guard, text = f"if ({match[1]}{_register(match[2])}) ", text[match.end() :]
        opcode, _, rest = text.partition(" ")
        return f"{guard}{{ {self.instruction(opcode, _operands(rest))} }}"

    def instruction(self, opcode: str, operands: list[str]) -> str:
        parts = [part for name in opcode.split(".") for part in name.split("::")]
        kinds = [part for part in parts if TYPE.fullmatch(part)]
        vector = next((int(part[1:]) for part in parts if re.fullmatch(r"v[24]", part)), 1)
        words = [p for p in parts if not TYPE.fullmatch(p) and not re.fullmatch(r"v[24]", p)]
        name = "_".join(words) + ("_" if "_".join(words) in KEYWORDS else "")
        match words[0]:
            case "bra":
                return f"goto {operands[0].replace('$', '')};"
            case "ret":
                return "return;"
            case "ld":
                values = _members(operands[0])
                sets = [self.set(v, f"v.at[{i}]") for i, v in enumerate(values)]
                address = self.address(operands[1])
                return f"const auto v = {name}<{kinds[0]}, {vector}>({address}); {' '.join(sets)}"
            case "st":
                values = [f"as<{kinds[0]}>({self.value(v)})" for v in _members(operands[1])]
                of = f"{kinds[0]}, {vector}"
                return f"{name}<{of}>({self.address(operands[0])}, {{{', '.join(values)}}});"
            case "mma":
                d, a, b, c = map(_members, operands)
                given = ["{" + ", ".join(map(self.value, each)) + "}" for each in (a, b)]
                given.append("{" + ", ".join(f"as<f32>({self.value(each)})" for each in c) + "}")
                sets = [self.set(each, f"v.at[{i}]") for i, each in enumerate(d)]
                call = f"{name}<{', '.join(kinds)}>({self.line}, {', '.join(given)})"
                return f"const auto v = {call}; {' '.join(sets)}"
            case "mov" if operands[0].startswith("{"):
                half = f"mov_half<{kinds[0]}>({self.value(operands[1])}, "
                parts = enumerate(_members(operands[0]))
                return " ".join(self.set(each, f"{half}{i})") for i, each in parts)
            case "mov" if operands[1].startswith("{"):
                name, operands = "mov_pack", [operands[0], *_members(operands[1])]
        of = f"<{', '.join(kinds)}>" if kinds else ""
        line = [str(self.line)] if words[0] in MEETINGS else []
        if words[0] in EFFECTS or words[0] == "bar":
            return f"{name}{of}({', '.join(line + list(map(self.operand, operands)))});"
        call = f"{name}{of}({', '.join(line + list(map(self.operand, operands[1:])))})"
        target, bar, found = operands[0].partition("|")
        if bar:
            sets = self.set(target, "v.value"), self.set(found, "v.found")
            return f"const auto v = {call}; {' '.join(sets)}"
        return self.set(target, call)

    def set(self, register: str, value: str) -> str:
        name = self.value(register)
        return f"{name} = bits<decltype({name})>({value});"

    def operand(self, text: str) -> str:
        return self.address(text) if text.startswith("[") else self.value(text)

    def value(self, text: str) -> str:
        """Return a register, number, special register or symbol."""
        if text in SPECIAL:
            return f"{text[1:].replace('.', '_')}()"
        if text.startswith("%") or text in self.named:
            return _register(text)
        if match := re.fullmatch(r"0f([0-9A-Fa-f]{8})", text):
            return f"0x{match[1]}u"
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", text):
            return f"s64({text.rstrip('U')}LL)"
        if text in self.shared:
            return "u32{0}"
        if text == self.parameter or text in self.local:
            variable = "&params" if text == self.parameter else text
            return f"reinterpret_cast<u64>({variable})"
        raise ValueError(f"Line {self.line}: operand {text!r}")

    def address(self, text: str) -> str:
        base, _, offset = text.strip("[]").partition("+")
        return f"{self.value(base)} + u64({offset or 0})"


def _register(name: str) -> str:
    """Return a register's name in C++, which differs from the names of types (%f32)."""
    return "R" + name.replace("%", "_")


def _operands(text: str) -> list[str]:
    """Split operands at commas outside braces."""
    return [part.strip() for part in re.split(r",\s*(?![^{]*\})", text) if part.strip()]


def _members(text: str) -> list[str]:
    return [part.strip() for part in text.strip("{}").split(",")]
