// Makes text that came from objects, sessions or the command line safe to print.

// Bidirectional controls, and the two that some terminals and readers take for the end of a line.
const WIDE = /[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/
const UNSAFE = /[\\\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g
const UNSAFE_RAW = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g

function escapeOne(c: string): string {
  if (c === "\\") return "\\\\"
  if (c === "\n") return "\\n"
  if (c === "\t") return "\\t"
  const point = c.codePointAt(0) as number
  return WIDE.test(c) ? `\\u{${point.toString(16)}}` : `\\x${point.toString(16).padStart(2, "0")}`
}

/**
 * Escapes text for tables, `key=value` lines and error lines: `\` as `\\`, LF `\n`, TAB `\t`, other C0, DEL and C1 as
 * `\xNN`, bidirectional controls and the separators U+2028 and U+2029 as `\u{N}`. The result is one line. Implements ctx-coreutils 2.4.
 */
export function escapeText(text: string): string {
  return text.replace(UNSAFE, escapeOne)
}

/** The same escapes but for LF, TAB and `\`: raw output on a terminal. Implements ctx-coreutils 2.4. */
export function escapeTerminal(text: string): string {
  return text.replace(UNSAFE_RAW, escapeOne)
}

/**
 * Escapes a name given as bytes. What is no UTF-8 is shown byte by byte as `\xNN`, so that two different names never
 * print alike by decoding. Implements ctx-coreutils 2.4.
 */
export function escapeBytes(bytes: Uint8Array): string {
  const whole = tryDecode(bytes)
  if (whole !== undefined) return escapeText(whole)
  let shown = ""
  for (let i = 0; i < bytes.length; ) {
    const size = sequenceSize(bytes[i] as number)
    const part = size > 0 && i + size <= bytes.length ? tryDecode(bytes.subarray(i, i + size)) : undefined
    if (part === undefined) {
      shown += `\\x${(bytes[i] as number).toString(16).padStart(2, "0")}`
      i++
    } else {
      shown += escapeText(part)
      i += size
    }
  }
  return shown
}

function tryDecode(bytes: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch {
    return undefined
  }
}

function sequenceSize(lead: number): number {
  if (lead < 0x80) return 1
  if (lead >= 0xc2 && lead < 0xe0) return 2
  if (lead >= 0xe0 && lead < 0xf0) return 3
  if (lead >= 0xf0 && lead < 0xf5) return 4
  return 0
}
