// Builds the addon with node-gyp. Where the headers lie beside the running node (Debian, NodeSource, nvm) they are
// used, so that no header archive is downloaded.
import { spawnSync } from "node:child_process"
import { existsSync, utimesSync } from "node:fs"
import { createRequire } from "node:module"
import { dirname, resolve } from "node:path"
import { fileURLToPath } from "node:url"

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const prefix = resolve(dirname(process.execPath), "..")
const env = { ...process.env }
if (existsSync(`${prefix}/include/node/node_api.h`)) env.npm_config_nodedir = prefix
const gyp = createRequire(import.meta.url).resolve("node-gyp/bin/node-gyp.js")
const jobs = process.env.CI ? "2" : "max"
const built = spawnSync(process.execPath, [gyp, "configure", "build", "--jobs", jobs, "--loglevel", "error"], {
  cwd: root,
  env,
  stdio: "inherit",
})
// What make left alone is up to date all the same; set-up compares times.
const now = new Date()
if (built.status === 0)
  for (const name of ["cortexfs.node", "cortexfs-enter"]) utimesSync(`${root}/build/Release/${name}`, now, now)
process.exit(built.status ?? 1)
