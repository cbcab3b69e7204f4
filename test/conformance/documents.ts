import { existsSync, readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { parseDocuments, parseItems } from "../../scripts/conformance.js"
import { ROOT } from "../harness/product.js"

const SPEC = join(ROOT, "spec")
const readDocument = (file: string) => readFileSync(join(SPEC, file), "utf8")
const documents = parseDocuments(readDocument("README.md"))

t.test("spec.1 every document of section 1 exists and spec/ holds no other .md file", async t => {
  t.equal(documents.length, 13)
  const found = readdirSync(SPEC).filter(name => name.endsWith(".md"))
  t.same(found.sort(), documents.map(document => document.file).sort())
})

t.test("spec.2 every document ends with a Conformance section numbered without gaps", async t => {
  for (const { file } of documents) {
    const text = readDocument(file)
    const headings = [...text.matchAll(/^#{1,2} .*$/gm)].map(match => match[0])
    t.equal(headings.at(-1), "## Conformance", file)
    const numbers = parseItems(text).map(item => item.number)
    t.ok(numbers.length > 0, file)
    t.same(
      numbers,
      numbers.map((_, i) => i + 1),
      file,
    )
  }
})

/** Numbers of the headings of a document: `## 1. Title`, `### 2.1 Title`. */
function headingNumbers(text: string): Set<string> {
  return new Set([...text.matchAll(/^#{2,4} (\d+(?:\.\d+)*)\.? /gm)].map(match => match[1]!))
}

/** `2, 5, 8` and `4–8, 14` and `3 to 6` and `3 and 8` as single section numbers. */
function expandNumbers(list: string): string[] {
  const numbers: string[] = []
  for (const [, from, to] of list.matchAll(/(\d+(?:\.\d+)*)(?:(?:–| to )(\d+))?/g)) {
    numbers.push(from!)
    if (to !== undefined) for (let n = Number(from) + 1; n <= Number(to); n++) numbers.push(String(n))
  }
  return numbers
}

const LIST = "\\d+(?:\\.\\d+)*(?:(?:, (?:and )?|–| to | and )\\d+(?:\\.\\d+)*(?![\\d,]*\\d{3}))*"

/** Each reference of a text to a document and sections, as `[document, number]`. */
function findReferences(text: string): [string, string][] {
  const byName = new RegExp(`\`([a-z-]+\\.md|README\\.md)\`,? (?:sections? )?(${LIST})`, "g")
  const byRow = new RegExp(`sections? (${LIST}) of (\\d+)(?!\\d)`, "g")
  const found: [string, string][] = []
  for (const [, file, list] of text.matchAll(byName)) for (const n of expandNumbers(list!)) found.push([file!, n])
  for (const [, list, row] of text.matchAll(byRow)) {
    const document = documents[Number(row)]
    if (document !== undefined) for (const n of expandNumbers(list!)) found.push([document.file, n])
  }
  return found
}

t.test("spec.3 every reference to a document and section leads to an existing file and heading", async t => {
  const headings = new Map(documents.map(({ file }) => [file, headingNumbers(readDocument(file))]))
  let references = 0
  for (const { file } of documents) {
    const text = readDocument(file)
    for (const [target, number] of findReferences(text)) {
      references++
      t.ok(headings.get(target)?.has(number), `${file}: ${target} ${number}`)
    }
    for (const [, path] of text.matchAll(/`(\.\.\/[A-Za-z-]+\.md)`/g))
      t.ok(existsSync(join(SPEC, path!)), `${file}: ${path}`)
  }
  t.ok(references > 150, `${references} references`)
})
