// `.tshrc`, data for a human tool shell (`root-abi.md` 7).
import { parseLines } from "./control.js"
import { refuse } from "./issue.js"
import { isCleanPath } from "./name.js"

const KEY = "CTX_PATH="

/** The directories of a `CTX_PATH` value, in order; throws `EINVAL` unless each is an absolute clean path. */
export function parseCtxPath(value: string, what = "CTX_PATH"): string[] {
  const dirs = value.split(":")
  for (const dir of dirs) {
    if (!isCleanPath(dir)) refuse(what, `${JSON.stringify(dir.slice(0, 80))} is not an absolute directory`)
  }
  return dirs
}

/**
 * What a `.tshrc` says: blank lines, lines beginning with `#`, and at most one `CTX_PATH=a:b` of absolute directories, taken literally
 * (no `$` is expanded). `undefined` without such a line. Throws `EINVAL` with the line for anything else.
 */
export function parseTshrc(bytes: Uint8Array, what = ".tshrc"): string[] | undefined {
  let dirs: string[] | undefined
  parseLines(bytes, what).forEach((line, i) => {
    if (/^[ \t]*$/.test(line) || line.startsWith("#")) return
    if (!line.startsWith(KEY)) refuse(what, "is neither blank, a # comment nor CTX_PATH=", i + 1)
    if (dirs !== undefined) refuse(what, "has CTX_PATH a second time", i + 1)
    dirs = parseCtxPath(line.slice(KEY.length), `${what} line ${i + 1}`)
  })
  return dirs
}
