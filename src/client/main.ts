// The runner of ctx: from words to a command, from a failure to one line and an exit code.

import { readFileSync } from "node:fs"
import { Config } from "@oclif/core/config"
import { withStandIns } from "./account.js"
import { CtxCommand, failureContext, hasFlag } from "./command.js"
import { describeFailure, failureJson, formatFailure, usageError } from "./failure.js"
import { letSignalsEnd } from "./interrupt.js"
import { findNearest } from "./nearest.js"
import { endOnClosedOutput, writeErr, writeJson, writeOut } from "./output.js"
import type { StartOptions } from "./start.js"

const PLUGIN_WORDS = ["help", "autocomplete"]

/**
 * Runs one ctx command line and sets the exit code; never throws. Each failure is exactly one stderr line, with
 * `--json` also a JSON object on stdout. An unknown word is a usage error with the nearest name, never a prompt.
 * Implements ctx-coreutils 2.1, 2.5, 2.6.
 */
export async function runCtx(argv: readonly string[], options: StartOptions): Promise<void> {
  endOnClosedOutput()
  letSignalsEnd()
  process.on("uncaughtException", error => {
    const failure = describeFailure(error)
    writeErr(formatFailure(failure))
    process.exit(failure.exit)
  })
  const running: Running = { isJson: hasFlag(argv, "--json"), context: {} }
  try {
    await dispatch(argv, options, running)
  } catch (error) {
    const failure = describeFailure(error, running.context)
    writeErr(formatFailure(failure))
    process.exitCode = failure.exit
    if (running.isJson) await writeJson(failureJson(failure))
  }
}

interface Running {
  isJson: boolean
  context: { words?: string; flags?: readonly string[] }
}

async function dispatch(argv: readonly string[], options: StartOptions, running: Running): Promise<void> {
  const words = leadingWords(argv)
  const isHelp = words.length === 0 || words[0] === "help" || hasFlag(argv, "--help")
  const config = await readConfig(options, isHelp || PLUGIN_WORDS.includes(words[0] ?? ""))
  if (argv[0] === "") throw usageError(`unknown command ""`, "see ctx --help")
  if (argv[0] === "--version") return writeOut(`${config.userAgent}\n`)
  const isWhole = words.length === 0 || words[0] === "help"
  const flag = argv.find(word => word.startsWith("-") && word !== "--help")
  if (isWhole && flag !== undefined) throw unknownFlag(flag, [])
  const subject = words[0] === "help" ? words.slice(1) : words
  const id = findCommandId(config, subject)
  if (isHelp) {
    if (id === undefined && subject.length > 0 && !isTopic(config, subject)) throw unknownCommand(config, subject)
    return showHelp(config, id ?? subject.join(":"))
  }
  if (id === undefined) {
    if (!isTopic(config, words)) throw unknownCommand(config, words)
    const next = argv[words.length]
    if (next !== undefined) throw unknownFlag(next, words)
    return showHelp(await readConfig(options, true), words.join(":"))
  }
  const cached = config.findCommand(id, { must: true })
  running.context = failureContext({ ...cached, flags: cached.flags, id: cached.id })
  running.isJson &&= cached.enableJsonFlag === true
  const rest = argv.slice(id.split(":").length)
  const Loaded = await cached.load()
  // The library's own way to run a command reads the whole configuration a second time.
  if (Loaded.prototype instanceof CtxCommand) {
    const Own = Loaded as unknown as new (argv: string[], config: Config) => CtxCommand
    await new Own(rest, config)._run()
  } else await withStandIns(() => config.runCommand(cached.id, rest, cached))
}

// Only words that look like command words: a word with a colon is none, so that an id is not taken for words.
function leadingWords(argv: readonly string[]): string[] {
  const end = argv.findIndex(word => word.startsWith("-") || word === "")
  return end === -1 ? [...argv] : argv.slice(0, end)
}

function findCommandId(config: Config, words: readonly string[]): string | undefined {
  for (let length = words.length; length > 0; length--) {
    const slice = words.slice(0, length)
    const id = slice.join(":")
    if (slice.every(word => !word.includes(":")) && config.findCommand(id) !== undefined) return id
  }
  return undefined
}

function isTopic(config: Config, words: readonly string[]): boolean {
  return words.every(word => !word.includes(":")) && config.findTopic(words.join(":")) !== undefined
}

function unknownCommand(config: Config, words: readonly string[]): Error {
  let depth = words.length - 1
  while (depth > 0 && !isTopic(config, words.slice(0, depth))) depth--
  const parent = words.slice(0, depth)
  const siblings = config.commandIDs
    .map(id => id.split(":"))
    .filter(parts => parts.length > depth && parent.every((word, i) => parts[i] === word))
    .map(parts => parts[depth] as string)
  const nearest = findNearest(words[depth] ?? "", [...new Set(siblings)])
  const help = ["see ctx", ...parent, "--help"].join(" ")
  const hint = nearest === undefined ? help : ["use ctx", ...parent, nearest].join(" ")
  return usageError(`unknown command ${words.slice(0, depth + 1).join(" ")}`, hint)
}

function unknownFlag(word: string, words: readonly string[]): Error {
  const nearest = findNearest(word, words.length === 0 ? ["--help", "--version"] : ["--help"])
  const hint = nearest === undefined ? ["see ctx", ...words, "--help"].join(" ") : `use ${nearest}`
  return usageError(`unknown flag ${word === "" ? '""' : word}`, hint)
}

// Plug-ins are read only when one is asked for or the whole is shown: a reading command pays for no other manifest.
async function readConfig(options: StartOptions, hasPlugins: boolean): Promise<Config> {
  const pjson = JSON.parse(readFileSync(`${options.root}/package.json`, "utf8"))
  if (!hasPlugins) pjson.oclif.plugins = []
  const { root, fromSource } = options
  if (!fromSource) return withStandIns(() => Config.load({ root, pjson, userPlugins: false, devPlugins: false }))
  // The manifest speaks of dist: sources are found by their file names instead.
  pjson.oclif.commands.target = "./src/commands"
  const { Plugin } = await import("@oclif/core")
  const plugin = new Plugin({ isRoot: true, name: pjson.name, pjson, root, ignoreManifest: true })
  await plugin.load()
  return withStandIns(() => Config.load({ root, pjson, plugins: new Map([[plugin.name, plugin]]) }))
}

async function showHelp(config: Config, id: string): Promise<void> {
  const { printHelp } = await import("./help.js")
  await printHelp(config, id)
}
