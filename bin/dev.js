#!/usr/bin/env node
// ctx straight from src, compiled in memory: no build between an edit and a try.
import { register } from "node:module"
import { fileURLToPath } from "node:url"
import { inspect } from "node:util"

const root = fileURLToPath(new URL("..", import.meta.url))
process.env.TS_NODE_PROJECT ??= `${root}tsconfig.json`
try {
  register("ts-node/esm/transpile-only", import.meta.url)
  const { startCtx } = await import("../src/client/start.ts")
  await startCtx(process.argv.slice(2), { root, fromSource: true })
} catch (error) {
  // What the compiler throws need not be an Error, nor have a text of its own.
  const what = error instanceof Error ? error.message : inspect(error)
  process.stderr.write(`ctx: internal: ${what.replace(/\s+/g, " ").slice(0, 900)}: npx tsc --noEmit\n`)
  process.exitCode = 70
}
