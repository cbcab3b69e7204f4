// `npm run bench -- NAME [--json]`: runs bench/NAME.ts and prints its rows. Raw output is kept below bench/out/.
import { mkdirSync, readdirSync, writeFileSync } from "node:fs"
import { register } from "node:module"
import { cpus, release } from "node:os"
import { join } from "node:path"
import { ensureAll, root, SetupFault } from "./setup.js"

const words = process.argv.slice(2)
const name = words.find(word => !word.startsWith("--"))
const names = readdirSync(join(root, "bench"))
  .filter(file => file.endsWith(".ts"))
  .map(file => file.slice(0, -3))
if (!name || !names.includes(name)) {
  process.stderr.write(`usage: npm run bench -- NAME [--json]; NAME is one of: ${names.join(" ")}\n`)
  process.exit(2)
}
try {
  ensureAll(["build", "run"])
} catch (error) {
  if (!(error instanceof SetupFault)) throw error
  process.stderr.write(`cortexfs: ${error.message}\n`)
  process.exit(1)
}
process.env.TS_NODE_PROJECT = join(root, "tsconfig.test.json")
register("ts-node/esm/transpile-only", import.meta.url)
const { measure } = await import(join(root, "bench", `${name}.ts`))
const rows = await measure()
const host = { kernel: release(), cpu: cpus()[0]?.model ?? "", cores: cpus().length, node: process.versions.node }
const document = { bench: name, at: new Date().toISOString(), host, rows }
mkdirSync(join(root, "bench/out"), { recursive: true })
writeFileSync(join(root, "bench/out", `${name}.json`), `${JSON.stringify(document, null, 2)}\n`)
if (words.includes("--json")) process.stdout.write(`${JSON.stringify(document)}\n`)
else {
  process.stdout.write(`${name}: kernel ${host.kernel}, ${host.cores} cores, ${host.cpu}, node ${host.node}\n`)
  const line = cells =>
    `${cells[0].padEnd(24)} ${cells[1].padStart(6)} ${cells
      .slice(2)
      .map(cell => cell.padStart(10))
      .join(" ")}\n`
  process.stdout.write(line(["measure", "unit", "ours", "base", "ratio", "goal"]))
  for (const { measure: what, unit, ours, base, ratio, goal } of rows)
    process.stdout.write(
      line([what, unit, ours.toFixed(2), base.toFixed(2), ratio.toFixed(2), goal === undefined ? "" : `<= ${goal}`]),
    )
}
