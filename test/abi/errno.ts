// The closed errno list, exit codes, the error class.
import { readdirSync, readFileSync } from "node:fs"
import { constants } from "node:os"
import t from "tap"
import { ERRNO, errnoName, exitCode, isErrnoName } from "../../src/abi/errno.js"
import { CtxError, codeOf, toCtxError } from "../../src/abi/error.js"
import { formatIssue, issueError } from "../../src/abi/issue.js"

const SPEC = new URL("../../spec/", import.meta.url)
// Words of the specification that only look like errno names.
const WORDS = new Set(["EOF", "ERROR", "ERRNO", "ELF", "END", "ENABLED", "EXCHANGE", "EXPIRES", "EXPAND", "EXACT"])

function kernelNumbers(): Map<string, number> {
  const numbers = new Map<string, number>()
  for (const file of ["errno-base.h", "errno.h"]) {
    const text = readFileSync(`/usr/include/asm-generic/${file}`, "utf8")
    for (const [, name, number] of text.matchAll(/^#define\s+(E\w+)\s+(\d+)/gm)) numbers.set(name!, Number(number))
    for (const [, name, other] of text.matchAll(/^#define\s+(E\w+)\s+(E\w+)/gm))
      numbers.set(name!, numbers.get(other!)!)
  }
  // The C library's second name of EOPNOTSUPP is not in the kernel's headers.
  return numbers
}

t.test("spec.6 every errno name of the specification stands in the closed list with its Linux number", async t => {
  const kernel = kernelNumbers()
  const used = new Set<string>()
  for (const file of readdirSync(SPEC).filter(name => name.endsWith(".md"))) {
    const text = readFileSync(new URL(file, SPEC), "utf8")
    for (const [name] of text.matchAll(/(?<![A-Za-z0-9_])E[A-Z0-9]{2,}(?![A-Za-z0-9_])/g))
      if (!WORDS.has(name)) used.add(name)
  }
  t.ok(used.size > 40)
  for (const name of [...used].sort()) {
    t.ok(kernel.has(name), `${name} is a Linux errno`)
    t.equal((ERRNO as Record<string, number>)[name], kernel.get(name), name)
  }
})

t.test("spec.6 the whole closed list has the kernel's numbers, also what Node.js lacks", async t => {
  const kernel = kernelNumbers()
  for (const [name, number] of Object.entries(ERRNO)) t.equal(number, kernel.get(name), name)
  t.equal("EHOSTDOWN" in constants.errno, false)
  t.equal(ERRNO.EHOSTDOWN, 112)
})

t.test("an errno number has one name, whatever its sign", async t => {
  for (const [name, number] of Object.entries(ERRNO)) {
    if (name === "EWOULDBLOCK") continue
    t.equal(errnoName(number), name)
    t.equal(errnoName(-number), name)
  }
  t.equal(errnoName(11), "EAGAIN")
  t.equal(errnoName(4095), undefined)
  t.equal(isErrnoName("toString"), false)
})

t.test("exit codes are those of the table", async t => {
  const table: [number, string][] = [
    [1, "ENOENT EEXIST EIO ELOOP EXDEV ENOTDIR EISDIR ENOSPC EROFS EALREADY ETIMEDOUT ESTALE ENODATA ENODEV ENOTEMPTY"],
    [2, "usage EINVAL EMSGSIZE E2BIG ENAMETOOLONG"],
    [13, "EACCES EPERM"],
    [69, "EHOSTDOWN ECONNREFUSED EBUSY EAGAIN ENOSYS EPROTO unmanaged unhealthy"],
    [70, "internal"],
    [130, "cancelled ECANCELED EINTR"],
  ]
  for (const [exit, codes] of table) for (const code of codes.split(" ")) t.equal(exitCode(code), exit, code)
  for (const code of ["", "toString", "ENOTHING"]) t.equal(exitCode(code), 1)
})

t.test("an error keeps code, errno, system call, path and hint", async t => {
  const cause = new Error("why")
  const e = new CtxError("EHOSTDOWN", "no sandbox", { path: "/p", syscall: "clone", hint: "install bubblewrap", cause })
  t.match(e, { code: "EHOSTDOWN", errno: -112, path: "/p", syscall: "clone", hint: "install bubblewrap", cause })
  t.equal(new CtxError("usage", "x").errno, 0)
  t.equal(toCtxError(e), e)
})

t.test("a foreign error becomes one of ours with its facts", async t => {
  let node: unknown
  try {
    readFileSync("/nowhere")
  } catch (e) {
    node = e
  }
  t.match(toCtxError(node), { code: "ENOENT", errno: -2, syscall: "open", path: "/nowhere", cause: node })
  // Node.js has no name for EHOSTDOWN and writes the number instead.
  t.equal(codeOf(Object.assign(new Error("connect"), { code: "Unknown system error -112", errno: -112 })), "EHOSTDOWN")
  t.equal(codeOf(new Error("x")), undefined)
  t.equal(codeOf("x"), undefined)
  for (const thrown of [new TypeError("x"), "text", undefined, null, 7, new Error("")]) {
    const e = toCtxError(thrown)
    t.equal(e.code, "internal")
    t.not(e.message, "")
  }
})

t.test("an issue names the thing and the line, and only a missing thing is ENOENT", async t => {
  const at = { kind: "invalid", what: "agent/coder.d/mount", at: 2, why: "source is relative" } as const
  t.equal(formatIssue(at), "agent/coder.d/mount line 2: source is relative")
  t.match(issueError(at), { code: "EINVAL", message: "agent/coder.d/mount line 2: source is relative" })
  t.equal(issueError({ kind: "empty", what: "x", why: "is empty" }).code, "EINVAL")
  t.equal(issueError({ kind: "missing", what: "x", why: "is not there" }).code, "ENOENT")
})
