// Makes one CommonJS file of each program that is started often, dist/bin/NAME.cjs beside the module dist/bin/NAME.js:
// reading one file takes a third of the time that a hundred modules take. What is imported when it is needed is in the
// file too, but runs only then.
import { writeFileSync } from "node:fs"
import { build } from "esbuild"

/** Programs that become one file. ctx loads its commands by their names and stays in modules. */
const PROGRAMS = ["agent", "mount", "step", "tool"]

/** The text with every character outside ASCII written as an escape: V8 keeps such a text in half the memory. */
const toAscii = text => text.replace(/[^\0-\x7f]/g, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`)

/**
 * Bundles the programs of a compiled product beside its modules. The native addon is looked up as from a module.
 * @param {string} dist absolute path of the directory that holds bin/
 */
export async function bundlePrograms(dist) {
  const { outputFiles } = await build({
    absWorkingDir: dist,
    entryPoints: PROGRAMS.map(name => `bin/${name}.js`),
    outdir: "bin",
    outExtension: { ".js": ".cjs" },
    bundle: true,
    write: false,
    platform: "node",
    target: "node20.19",
    format: "cjs",
    // Only a call of a tool needs the validator: it stays a package, which is read then.
    external: ["ajv"],
    define: { "import.meta.url": "MODULE_URL" },
    banner: { js: '"use strict"; const MODULE_URL = require("node:url").pathToFileURL(__filename).href;' },
    logLevel: "warning",
  })
  for (const { path, text } of outputFiles) writeFileSync(path, toAscii(text))
}
