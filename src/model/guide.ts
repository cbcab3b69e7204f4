// `debug/guide`: reads the files that the user names and shows what it read, offline and deterministic (`model-abi.md` 10.3).
import type { Driver, ModelCall, ModelEvent, ResultPart } from "./driver.js"
import { countTokens, playEvents, readLastTurn, usageEvent } from "./prompt.js"

/** Last line of every answer, and the whole answer when the tool it needs is not offered. */
export const GUIDE_LINE = "This is the offline guide. For a real model: cortexfs-provider preset list"

const PATHS_MAX = 3
const LINES_MAX = 12
const NAMES_MAX = 20
const PATH_SIZE_MAX = 255

/** The first three different relative paths among the words of a text. */
export function findPaths(text: string): string[] {
  const paths = new Set<string>()
  for (const word of text.split(/\s+/)) {
    const path = word.replace(/^["'`“”‘’«»]+/, "").replace(/["'`“”‘’«».,;:?!]+$/, "")
    const isPath = /^[^/].*[/.]./s.test(path) || /^[^/][/.]./s.test(path)
    if (isPath && !path.includes("..") && Buffer.byteLength(path) <= PATH_SIZE_MAX) paths.add(path)
    if (paths.size === PATHS_MAX) break
  }
  return [...paths]
}

function firstLine(s: string): string {
  return s.split("\n", 1)[0]!
}

function linesOf(content: string): string[] {
  const lines = content.split("\n")
  if (lines.at(-1) === "") lines.pop()
  return lines
}

function showListing(result: ResultPart): string {
  if (result.status === "error") return `${firstLine(result.content)}\n`
  const names = linesOf(result.content)
    .filter(line => !line.startsWith("["))
    .map(line => line.split("\t").slice(2).join("\t"))
  const shown = names.slice(0, NAMES_MAX).map(name => `  ${name}\n`)
  return `${names.length} ${names.length === 1 ? "entry" : "entries"}\n${shown.join("")}`
}

function showFile(path: string, result: ResultPart): string {
  if (result.status === "error") return `${firstLine(result.content)}\n`
  const lines = linesOf(result.content)
  // fs.read says in a last line of its own that the file goes on; N is then the file's number.
  const cut = /^\[cut: (?:lines \d+-\d+ of (\d+); next line=\d+|line \d+ at byte \d+ of \d+)\]$/.exec(
    lines.at(-1) ?? "",
  )
  if (cut !== null) lines.pop()
  const quoted = lines.slice(0, LINES_MAX).map(line => `> ${line}\n`)
  return `${path}: ${cut?.[1] ?? lines.length} lines\n${quoted.join("")}`
}

function* play(c: ModelCall): Generator<ModelEvent> {
  const { text, results } = readLastTurn(c.messages)
  const paths = findPaths(text)
  const input = countTokens(text, ...results.map(r => r.content))
  const n = results.length
  const isList = paths.length === 0
  const tool = isList ? "fs.list" : "fs.read"
  if (n < Math.max(paths.length, 1) && c.tools.some(offer => offer.name === tool)) {
    const path = isList ? "." : paths[n]!
    const said = isList ? "Listing the working directory.\n" : `Reading ${path}.\n`
    const id = `c-${n + 1}`
    yield { type: "delta", text: said }
    yield { type: "message", content: [{ type: "text", text: said }] }
    yield { type: "tool_call", id, name: tool, arguments: { path } }
    yield usageEvent(input, countTokens(said), [id])
    return
  }
  const shown = isList
    ? results.slice(0, 1).map(showListing)
    : results.slice(0, paths.length).map((r, i) => showFile(paths[i]!, r))
  const blocks = [...shown.map(block => `${block}\n`), GUIDE_LINE]
  for (const block of blocks) yield { type: "delta", text: block }
  const answer = blocks.join("")
  yield { type: "message", content: [{ type: "text", text: answer }] }
  yield usageEvent(input, countTokens(answer))
}

/** Driver of `debug/guide`. */
export const guide: Driver = { call: c => playEvents(c, () => play(c)) }
