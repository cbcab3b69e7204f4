#!/usr/bin/env node
// ctx from the built tree beside this file.
import { fileURLToPath } from "node:url"

const root = fileURLToPath(new URL("..", import.meta.url))
try {
  const { startCtx } = await import("../dist/client/start.js")
  await startCtx(process.argv.slice(2), { root })
} catch (error) {
  const what = error?.code === "ERR_MODULE_NOT_FOUND" ? "the program is not built" : String(error?.message ?? error)
  process.stderr.write(`ctx: internal: ${what.replace(/\s+/g, " ").slice(0, 900)}: npm run build\n`)
  process.exitCode = 70
}
