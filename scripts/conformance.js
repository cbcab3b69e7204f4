#!/usr/bin/env node
// `npm run conformance`: does every Conformance item of spec/ that is built carry a test, and does every test name an
// item that exists? Exit 0 or 1. Options: --json, --list (items with their titles), --unmark (takes `(later)` off items
// with a full title, in spec/*.md), --root DIR (another checkout). Rules: spec/README.md 6 and 7.
import { spawnSync } from "node:child_process"
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { dirname, join, relative, resolve } from "node:path"
import { fileURLToPath } from "node:url"
import ts from "typescript"

const HEADING = /^## Conformance$/m
const ITEM = /^(\d+)\. (?:\((later|dropped)\) ?)?(.*)$/

/**
 * @typedef {{ file: string, prefix: string }} Document
 * @typedef {{ number: number, mark: "later" | "dropped" | undefined, text: string }} Item
 * @typedef {{ title: string, file: string, line: number }} Title
 */

/** The documents that count, from the table of spec/README.md 1. @param {string} readme @returns {Document[]} */
export function parseDocuments(readme) {
  const rows = readme.matchAll(/^\| \d+ \| `([a-z-]+\.md|README\.md)` \| .* \| `([a-z]+)` \|$/gm)
  return [...rows].map(([, file, prefix]) => ({ file, prefix }))
}

/** The items behind the last heading of a document, in file order. @param {string} text @returns {Item[]} */
export function parseItems(text) {
  const at = text.search(HEADING)
  if (at === -1) return []
  const items = []
  for (const line of text.slice(at).split("\n")) {
    const match = ITEM.exec(line)
    if (match) items.push({ number: Number(match[1]), mark: match[2], text: match[3].trim() })
    else if (items.length > 0 && /^\s+\S/.test(line)) items.at(-1).text += ` ${line.trim()}`
  }
  return items
}

/** What a title cites: each `prefix.N`, and whether only a part, which stands in brackets behind it. */
export function parseCitations(title, prefixes) {
  const word = new RegExp(`(?<![\\w./-])(${prefixes.join("|")})\\.(\\d+)(?![\\w]|\\.\\d)( \\()?`, "g")
  return [...title.matchAll(word)].map(([, prefix, number, part]) => ({
    prefix,
    number: Number(number),
    isPart: part !== undefined,
  }))
}

/** The titles of all test(...) calls of a file; of a template the part that does not change. @returns {Title[]} */
export function parseTitles(text, file) {
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true)
  const titles = []
  const visit = node => {
    if (ts.isCallExpression(node) && isTestCall(node.expression) && node.arguments.length > 0) {
      const title = literalText(node.arguments[0])
      const line = source.getLineAndCharacterOfPosition(node.getStart()).line + 1
      if (title !== undefined) titles.push({ title, file, line })
    }
    ts.forEachChild(node, visit)
  }
  visit(source)
  return titles
}

function isTestCall(callee) {
  if (ts.isIdentifier(callee)) return callee.text === "test"
  return ts.isPropertyAccessExpression(callee) && callee.name.text === "test"
}

function literalText(node) {
  if (ts.isStringLiteralLike(node)) return node.text
  if (ts.isTemplateExpression(node))
    return [node.head, ...node.templateSpans.map(span => span.literal)].map(part => part.text).join("…")
  if (!ts.isBinaryExpression(node) || node.operatorToken.kind !== ts.SyntaxKind.PlusToken) return undefined
  const sides = [literalText(node.left), literalText(node.right)]
  return sides.includes(undefined) ? undefined : sides.join("")
}

/** Test files below test/, without harness and fixtures. @returns {string[]} */
function findTests(dir) {
  if (!existsSync(dir)) return []
  return readdirSync(dir, { withFileTypes: true })
    .flatMap(entry => {
      const path = join(dir, entry.name)
      if (entry.isDirectory()) return ["harness", "fixture"].includes(entry.name) ? [] : findTests(path)
      return entry.name.endsWith(".ts") ? [path] : []
    })
    .sort()
}

/** What changed in the items of one document in a way that is not allowed: README.md 6, last point. @returns {string[]} */
export function compareItems(prefix, before, after) {
  const failures = []
  const byText = new Map(after.filter(item => item.mark !== "dropped").map(item => [item.text, item.number]))
  for (const old of before) {
    const now = after.find(item => item.number === old.number)
    const moved = byText.get(old.text)
    if (now === undefined) failures.push(`${prefix}.${old.number} is gone: a dropped item stays as (dropped)`)
    else if (old.mark === "dropped" && now.mark !== "dropped")
      failures.push(`${prefix}.${old.number} reuses a dropped item`)
    else if (old.text !== "" && now.text !== old.text && moved !== undefined && moved !== old.number) {
      failures.push(`${prefix}.${old.number} has become ${prefix}.${moved}: an item keeps its number`)
    }
  }
  return failures
}

function git(root, ...args) {
  const run = spawnSync("git", ["-C", root, ...args], { encoding: "utf8", maxBuffer: 64 * 1024 * 1024 })
  return run.status === 0 ? run.stdout : undefined
}

/** Revisions to compare with: the last commit, and the one before it, since what is checked may just be committed. */
function findRevisions(root) {
  const top = git(root, "rev-parse", "--show-toplevel")?.trim()
  if (top === undefined || resolve(top) !== resolve(root)) return []
  return ["HEAD", "HEAD^"].filter(name => git(root, "rev-parse", "--verify", "--quiet", name) !== undefined)
}

/** Every test title of a checkout. @param {string} root @returns {Title[]} */
export function readTitles(root) {
  return findTests(join(root, "test")).flatMap(file => parseTitles(readFileSync(file, "utf8"), relative(root, file)))
}

/**
 * Reads the documents of a checkout and gives per document the items with their titles, and every failure.
 * @param {string} root
 * @param {Title[]} titles
 */
export function checkConformance(root, titles = readTitles(root)) {
  const spec = join(root, "spec")
  const failures = []
  const listed = parseDocuments(readFileSync(join(spec, "README.md"), "utf8"))
  if (listed.length === 0) failures.push("spec/README.md section 1 lists no document")
  const prefixes = listed.map(document => document.prefix)
  const revisions = findRevisions(root)
  const documents = listed.map(({ file, prefix }) => {
    const path = join(spec, file)
    if (!existsSync(path)) {
      failures.push(`spec/${file} is missing`)
      return { file, prefix, items: [] }
    }
    const items = parseItems(readFileSync(path, "utf8"))
    if (items.length === 0) failures.push(`spec/${file} has no Conformance items`)
    items.forEach((item, i) => {
      if (item.number !== i + 1) failures.push(`spec/${file}: item ${item.number} stands where ${i + 1} is due`)
    })
    for (const revision of revisions) {
      const before = git(root, "show", `${revision}:spec/${file}`)
      if (before !== undefined) failures.push(...compareItems(prefix, parseItems(before), items))
    }
    return { file, prefix, items: items.map(item => ({ ...item, ...noTitles() })) }
  })
  for (const title of titles) {
    for (const { prefix, number, isPart } of parseCitations(title.title, prefixes)) {
      const item = documents.find(one => one.prefix === prefix).items.find(one => one.number === number)
      if (item === undefined || item.mark === "dropped") {
        const why = item === undefined ? "does not exist" : "is dropped"
        failures.push(`${title.file}:${title.line} names ${prefix}.${number}, which ${why}`)
      } else item[isPart ? "part" : "full"].push(title)
    }
  }
  for (const { prefix, items } of documents) {
    for (const item of items) {
      if (item.mark === undefined && item.full.length + item.part.length === 0) {
        failures.push(`${prefix}.${item.number} has no test`)
      }
    }
  }
  return { documents, failures: [...new Set(failures)], revisions, titles: titles.length }
}

/** @returns {{ full: Title[], part: Title[] }} */
function noTitles() {
  return { full: [], part: [] }
}

/** Takes the mark off each item with a full title. Gives how many. @param {string} root */
export function unmarkItems(root, documents) {
  let count = 0
  for (const { file, items } of documents) {
    const done = new Set(items.filter(item => item.mark === "later" && item.full.length > 0).map(item => item.number))
    if (done.size === 0) continue
    const path = join(root, "spec", file)
    const text = readFileSync(path, "utf8")
    const at = text.search(HEADING)
    const tail = text
      .slice(at)
      .replace(/^(\d+)\. \(later\) /gm, (line, number) => (done.has(Number(number)) ? `${number}. ` : line))
    writeFileSync(path, text.slice(0, at) + tail)
    count += done.size
  }
  return count
}

function countItems({ file, prefix, items }) {
  const count = test => items.filter(test).length
  return {
    document: file,
    prefix,
    items: items.length,
    later: count(item => item.mark === "later"),
    dropped: count(item => item.mark === "dropped"),
    full: count(item => item.full.length > 0),
    part: count(item => item.full.length === 0 && item.part.length > 0),
    untested: count(item => item.mark === undefined && item.full.length + item.part.length === 0),
  }
}

function sum(rows) {
  const total = { document: "all", prefix: "" }
  for (const key of ["items", "later", "dropped", "full", "part", "untested"]) {
    total[key] = rows.reduce((value, row) => value + row[key], 0)
  }
  return total
}

function printTable(rows) {
  const keys = ["document", "prefix", "items", "later", "dropped", "full", "part", "untested"]
  const lines = [keys, ...rows.map(row => keys.map(key => String(row[key])))]
  const widths = keys.map((_, i) => Math.max(...lines.map(line => line[i].length)))
  const isText = i => i < 2
  for (const line of lines) {
    console.log(
      line
        .map((cell, i) => (isText(i) ? cell.padEnd(widths[i]) : cell.padStart(widths[i])))
        .join("  ")
        .trimEnd(),
    )
  }
}

function printList(documents) {
  for (const { prefix, items } of documents) {
    for (const item of items) {
      const state = item.full.length > 0 ? "full" : item.part.length > 0 ? "part" : "none"
      console.log(`${prefix}.${item.number}\t${item.mark ?? "-"}\t${state}`)
      for (const { title, file, line } of [...item.full, ...item.part]) console.log(`  ${file}:${line}\t${title}`)
    }
  }
}

function main(args) {
  const known = ["--json", "--list", "--unmark", "--root"]
  const at = args.indexOf("--root")
  const root = at === -1 ? dirname(dirname(fileURLToPath(import.meta.url))) : resolve(args[at + 1] ?? ".")
  const unknown = args.find((arg, i) => !known.includes(arg) && i !== at + 1)
  if (unknown !== undefined) {
    console.error(`conformance: usage: unknown option ${unknown}: use ${known.join(" ")}`)
    return 2
  }
  let result = checkConformance(root)
  if (args.includes("--unmark")) {
    console.error(`unmarked ${unmarkItems(root, result.documents)}`)
    result = checkConformance(root)
  }
  const rows = result.documents.map(countItems)
  const total = sum(rows)
  const isOk = result.failures.length === 0
  if (args.includes("--json")) {
    const { failures, revisions, titles } = result
    console.log(JSON.stringify({ ok: isOk, titles, compared: revisions, documents: rows, total, failures }, null, 2))
  } else {
    if (args.includes("--list")) printList(result.documents)
    else printTable([...rows, total])
    console.log(`compared with ${result.revisions.join(" and ") || "no commit: this is no git checkout"}`)
    for (const failure of result.failures) console.error(`conformance: ${failure}`)
  }
  return isOk ? 0 : 1
}

if (process.argv[1] && resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  process.exitCode = main(process.argv.slice(2))
}
