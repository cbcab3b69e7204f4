// Patterns for session names: `*`, `?` and `[...]` (session-abi 13, ctx-coreutils 7.2).

type Token = "*" | ((c: string) => boolean)

/**
 * True when the pattern matches the whole name. `*` is any text, `?` any character, `[a-f]` one of a set and `[!a-f]` one that
 * is not in it; a `[` without its `]` stands for itself. The time is at most the product of both lengths.
 */
export function matchGlob(glob: string, name: string): boolean {
  const tokens = parseGlob(glob)
  let [at, i] = [0, 0]
  let star = -1
  let taken = 0
  while (i < name.length) {
    const token = tokens[at]
    if (token === "*") {
      star = at++
      taken = i
    } else if (token?.(name[i] as string)) {
      at++
      i++
    } else if (star !== -1) {
      // Only the last star is tried with more: what an earlier one could take, this one can.
      at = star + 1
      i = ++taken
    } else return false
  }
  return tokens.slice(at).every(token => token === "*")
}

function parseGlob(glob: string): Token[] {
  const tokens: Token[] = []
  for (let i = 0; i < glob.length; i++) {
    const c = glob[i] as string
    const set = c === "[" ? parseSet(glob, i) : undefined
    if (set !== undefined) {
      tokens.push(set.test)
      i = set.end
    } else if (c === "*") tokens.push("*")
    else tokens.push(c === "?" ? () => true : other => other === c)
  }
  return tokens
}

function parseSet(glob: string, begin: number): { test: (c: string) => boolean; end: number } | undefined {
  const isNegated = glob[begin + 1] === "!" || glob[begin + 1] === "^"
  const first = begin + (isNegated ? 2 : 1)
  // A `]` in the first place is one of the set.
  const end = glob.indexOf("]", first + 1)
  if (end === -1) return undefined
  const ranges: [string, string][] = []
  for (let i = first; i < end; i++) {
    const isRange = glob[i + 1] === "-" && i + 2 < end
    ranges.push([glob[i] as string, glob[isRange ? i + 2 : i] as string])
    if (isRange) i += 2
  }
  return { test: c => ranges.some(([from, to]) => from <= c && c <= to) !== isNegated, end }
}
