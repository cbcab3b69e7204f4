// Completions: bash is asked what it would offer.
import { execFileSync } from "node:child_process"
import { mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import t from "tap"
import { makeDir, ROOT } from "../harness/product.js"
import { cleanEnv } from "../harness/program.js"

interface Command {
  id: string
  aliases: string[]
  flags: Record<string, { name: string }>
}

interface Completion {
  formatBash(manifest: object, product: object): string
  formatZsh(manifest: object, product: object): string
}

const manifest: { commands: Record<string, Command> } = JSON.parse(
  readFileSync(join(ROOT, "oclif.manifest.json"), "utf8"),
)
const product = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"))
const { formatBash, formatZsh }: Completion = await import(pathToFileURL(`${ROOT}/scripts/completion.js`).href)
const dir = makeDir("cortexfs-completion")
const file = join(dir, "ctx")
writeFileSync(file, formatBash(manifest, product))
for (const agent of ["coder", "worker"]) mkdirSync(join(dir, "root/agent", `${agent}.d`), { recursive: true })

/** What bash offers for the last of these words. */
function complete(...words: string[]): string[] {
  const script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ctx; printf "%s\\n" "$' + '{COMPREPLY[@]}"'
  const env = cleanEnv({ CTX_ROOT: join(dir, "root") })
  const args = ["-c", script, file, "ctx", ...words]
  const offered = execFileSync("/usr/bin/bash", args, { encoding: "utf8", env })
  return offered.split("\n").filter(Boolean).sort()
}

t.test("every command and alias is offered after its topic, and every flag after the command", async t => {
  const ids = Object.values(manifest.commands).flatMap(({ id, aliases }) => [id, ...aliases])
  for (const id of ids) {
    const words = id.split(":")
    t.ok(complete(...words.slice(0, -1), "").includes(words.at(-1)!), id)
  }
  for (const { id, flags } of Object.values(manifest.commands)) {
    const wanted = [...Object.values(flags).map(flag => `--${flag.name}`), "--help"].sort()
    t.same(complete(...id.split(":"), "-"), wanted, id)
  }
  t.same(complete("agent", "session", ""), ["archive", "gc", "list", "verify"])
  t.same(complete("agent", "send", "--se"), ["--session"])
})

t.test("arguments and values are offered where they are known, and nothing where they are not", async t => {
  t.same(complete("agent", "send", ""), ["coder", "worker"])
  t.same(complete("send", "--raw", "c"), ["coder"])
  t.same(complete("agent", "send", "--session", ""), [])
  t.same(complete("agent", "send", "--session", "a", ""), ["coder", "worker"])
  t.same(complete("agent", "send", "coder", ""), [])
  t.same(complete("which", ""), ["agent", "model", "tool"])
  t.same(complete("agent", "session", "list", "--origin", "=", "t"), ["temp", "tg"])
  t.same(complete("agent", "send", "--workspace", join(dir, "ro")), [join(dir, "root")])
  t.same(complete("no-command", ""), [])
  t.same(complete("cat", "--", "--"), [])
})

t.test("zsh gets a table of the same commands and flags", async t => {
  const text = formatZsh(manifest, product)
  t.match(text, /^#compdef ctx\n/)
  for (const { id, aliases, flags } of Object.values(manifest.commands)) {
    for (const name of [id, ...aliases]) {
      const line = text.split("\n").find(line => line.startsWith(`    '${name.replaceAll(":", " ")}') _arguments`))
      for (const flag of Object.values(flags)) t.match(line, new RegExp(`--${flag.name}[=[]`), `${name} --${flag.name}`)
    }
  }
})
