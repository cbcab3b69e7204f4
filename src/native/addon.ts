import { existsSync, readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"

/**
 * The directory that holds the product: the nearest one above this file whose package.json names "cortexfs".
 * A checkout and an installed tree have the same shape, so one rule finds both. Absolute path, no trailing slash.
 */
export const LIB_ROOT: string = findRoot(dirname(fileURLToPath(import.meta.url)))

function findRoot(start: string): string {
  for (let dir = start; ; dir = dirname(dir)) {
    const manifest = join(dir, "package.json")
    if (existsSync(manifest) && JSON.parse(readFileSync(manifest, "utf8")).name === "cortexfs") return dir
    if (dir === dirname(dir)) throw new Error(`no package.json of cortexfs above ${start}`)
  }
}

/** A native program of the product, built beside the addon. Absolute path; the file may be absent in an unbuilt tree. */
export function nativeProgram(name: "cortexfs-enter"): string {
  return join(LIB_ROOT, "build", "Release", name)
}

/**
 * The native addon. `CORTEXFS_ADDON` names another build of it (sanitizer builds in tests).
 * Errors: Node's own when the file is missing or cannot be loaded.
 */
export const addon: Record<string, never> = createRequire(import.meta.url)(
  process.env.CORTEXFS_ADDON ?? join(LIB_ROOT, "build", "Release", "cortexfs.node"),
)
