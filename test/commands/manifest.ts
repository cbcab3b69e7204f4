import { readFileSync } from "node:fs"
import { join } from "node:path"
import { Config, Plugin } from "@oclif/core"
import t from "tap"
import { ctx, manifestCommands, run } from "../fixture/commands/cli.js"
import { ROOT } from "../harness/product.js"

/** The commands of this release, as ctx-coreutils.md names them. */
const COMMANDS = [
  "abi",
  "agent cancel",
  "agent children",
  "agent history",
  "agent output",
  "agent ps",
  "agent resume",
  "agent send",
  "agent session archive",
  "agent session gc",
  "agent session list",
  "agent session verify",
  "agent status",
  "agent stop",
  "agent trajectory",
  "bootstrap",
  "cat",
  "connect",
  "env",
  "ls",
  "ping",
  "root",
  "status",
  "storage list",
  "storage update",
  "storage verify",
  "validate",
  "which",
]
const ALIASES = ["cancel", "history", "resume", "send", "validate-name"]

t.test("the committed manifest is the one the compiled commands give", async t => {
  const plugin = new Plugin({
    errorOnManifestCreate: true,
    ignoreManifest: true,
    respectNoCacheDefault: true,
    root: ROOT,
    type: "core",
  })
  await plugin.load()
  const made = JSON.parse(JSON.stringify(plugin.manifest))
  t.same(JSON.parse(readFileSync(join(ROOT, "oclif.manifest.json"), "utf8")), made, "run npm run manifest")
})

t.test("ctx.44 (the commands of this release) the manifest has exactly these commands and aliases", async t => {
  const words = (id: string) => id.replaceAll(":", " ")
  const commands = manifestCommands()
  t.same(commands.map(one => words(one.id)).sort(), COMMANDS)
  t.same(commands.flatMap(one => one.aliases.map(words)).sort(), ALIASES)
  for (const { id } of commands) for (const word of id.split(":")) t.match(word, /^[a-z][a-z0-9]*$/, id)
  const config = await Config.load({ root: ROOT, userPlugins: false, devPlugins: false })
  const plugged = config.commandIDs.map(words).filter(id => ![...COMMANDS, ...ALIASES].includes(id))
  t.same([...new Set(plugged.map(id => id.split(" ")[0]))].sort(), ["autocomplete", "help"])
})

t.test("every command has a summary, a description and an example that begins with ctx or uses it", async t => {
  const manifest = JSON.parse(readFileSync(join(ROOT, "oclif.manifest.json"), "utf8"))
  for (const one of Object.values(manifest.commands as Record<string, Record<string, unknown>>)) {
    t.match(one.summary, /^[A-Z].*[^.]$/, `${one.id} summary`)
    t.match(one.description, /\S/, `${one.id} description`)
    const examples = one.examples as string[]
    t.ok(examples.length > 0, `${one.id} examples`)
    for (const example of examples) t.match(example, "<%= config.bin %> ", `${one.id}: ${example}`)
  }
})

t.test("ctx runs from source with the same commands and no compiled file", async t => {
  const dev = join(ROOT, "bin/dev.js")
  const version = await run([process.execPath, dev, "abi"], {}, { timeoutMs: 60_000 })
  t.equal(version.code, 0, version.stderr)
  t.equal(version.stdout, (await ctx(["abi"])).stdout)
  const nope = await run([process.execPath, dev, "agent", "sned"], {}, { timeoutMs: 60_000 })
  t.equal(nope.stderr, "ctx: usage: unknown command agent sned: use ctx agent send\n")
  t.equal(nope.code, 2)
})
