// The shape of src/: who may import whom, how files are named, what is declared once.
import { existsSync, readdirSync, readFileSync } from "node:fs"
import { dirname, join, resolve } from "node:path"
import t from "tap"
import ts from "typescript"

const ROOT = new URL("../../", import.meta.url).pathname
const SRC = join(ROOT, "src")

/** What each folder may import besides itself, abi and native: ARCHITECTURE "Folders", closed downward. */
const BELOW: Record<string, string> = {
  abi: "",
  native: "",
  store: "",
  policy: "",
  session: "store policy",
  model: "store policy",
  tool: "store policy",
  agent: "session model tool store policy",
  fs: "store policy",
  endpoint: "session agent model tool store policy",
  unit: "store",
}
// `client` holds what the commands share; oclif takes every file below commands for a command.
const OPEN = ["commands", "client", "bin"]
const STEMS = "utils helpers common misc types manager service handler base core index".split(" ")

interface Module {
  file: string
  folder: string
  source: ts.SourceFile
}

function filesBelow(dir: string, pattern: RegExp): string[] {
  return readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile() && pattern.test(entry.name))
    .map(entry => join(entry.parentPath, entry.name))
    .sort()
}

const MODULES: Module[] = filesBelow(SRC, /\.ts$/).map(path => {
  const file = path.slice(SRC.length + 1)
  const source = ts.createSourceFile(path, readFileSync(path, "utf8"), ts.ScriptTarget.ES2022, true)
  return { file, folder: file.split("/")[0]!, source }
})

function visit(node: ts.Node, see: (node: ts.Node) => void): void {
  see(node)
  node.forEachChild(child => visit(child, see))
}

/** Every module specifier of a file: imports, exports, dynamic imports, import types. */
function specifiersOf(source: ts.SourceFile): string[] {
  const found: string[] = []
  const take = (node: ts.Node | undefined) => {
    if (node !== undefined && ts.isStringLiteralLike(node)) found.push(node.text)
  }
  visit(source, node => {
    if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node)) take(node.moduleSpecifier)
    if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) take(node.arguments[0])
    if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument)) take(node.argument.literal)
  })
  return found
}

/** The edges of a file inside src, as paths without `.ts`. */
function edgesOf({ source }: Module): string[] {
  return specifiersOf(source)
    .filter(specifier => specifier.startsWith("."))
    .map(specifier => resolve(dirname(source.fileName), specifier))
}

function isAllowed(from: string, to: string): boolean {
  if (OPEN.includes(from) || from === to) return true
  if (!Object.hasOwn(BELOW, from)) return false
  return to === "abi" || (to === "native" && from !== "abi") || BELOW[from]!.split(" ").includes(to)
}

t.test("imports go downward only", async t => {
  const upward = MODULES.flatMap(module =>
    edgesOf(module)
      .map(target => target.slice(SRC.length + 1))
      .filter(target => !isAllowed(module.folder, target.split("/")[0]!))
      .map(target => `${module.file} -> ${target}`),
  )
  t.same(upward, [])
  t.same(
    [...new Set(MODULES.map(m => m.folder))].filter(folder => !Object.hasOwn(BELOW, folder) && !OPEN.includes(folder)),
    [],
  )
})

t.test("every relative import leads to a file of src and ends in .js", async t => {
  const wrong = MODULES.flatMap(module =>
    edgesOf(module)
      .filter(target => !target.endsWith(".js") || !existsSync(target.replace(/\.js$/, ".ts")))
      .map(target => `${module.file} -> ${target}`),
  )
  t.same(wrong, [])
})

t.test("no module imports itself through others while it is loaded", async t => {
  const graph = new Map<string, string[]>()
  for (const { file, source } of MODULES) {
    const edges: string[] = []
    for (const statement of source.statements) {
      if (!ts.isImportDeclaration(statement) && !ts.isExportDeclaration(statement)) continue
      const isTypeOnly = ts.isImportDeclaration(statement) ? statement.importClause?.isTypeOnly : statement.isTypeOnly
      const specifier = statement.moduleSpecifier
      if (isTypeOnly || specifier === undefined || !ts.isStringLiteral(specifier) || !specifier.text.startsWith("."))
        continue
      edges.push(
        resolve(dirname(source.fileName), specifier.text)
          .slice(SRC.length + 1)
          .replace(/\.js$/, ".ts"),
      )
    }
    graph.set(file, edges)
  }
  const state = new Map<string, "open" | "done">()
  const cycles: string[] = []
  const walk = (file: string, path: string[]) => {
    if (state.get(file) === "done") return
    if (state.get(file) === "open") {
      cycles.push([...path.slice(path.indexOf(file)), file].join(" -> "))
      return
    }
    state.set(file, "open")
    for (const next of graph.get(file) ?? []) walk(next, [...path, file])
    state.set(file, "done")
  }
  for (const file of graph.keys()) walk(file, [])
  t.same(cycles, [])
})

t.test("naming.1 stems and folders are one lower-case token and none is a word that says nothing", async t => {
  const native = filesBelow(join(ROOT, "native"), /\.(?:cc|h|c)$/).map(path => path.slice(ROOT.length))
  const own = MODULES.filter(m => m.folder !== "commands").map(m => `src/${m.file}`)
  const wrong = [...own, ...native].filter(path => {
    const parts = path.split("/")
    const stem = parts.at(-1)!.replace(/\.[a-z]+$/, "")
    return STEMS.includes(stem) || [stem, ...parts.slice(1, -1)].some(part => !/^[a-z][a-z0-9]*$/.test(part))
  })
  t.same(wrong, [])
})

t.test("naming.2 default exports are for commands, and no file only passes on others", async t => {
  const wrong: string[] = []
  for (const { file, folder, source } of MODULES) {
    if (folder === "commands") continue
    for (const statement of source.statements) {
      const modifiers = ts.canHaveModifiers(statement) ? (ts.getModifiers(statement) ?? []) : []
      if (ts.isExportAssignment(statement) || modifiers.some(m => m.kind === ts.SyntaxKind.DefaultKeyword))
        wrong.push(file)
    }
    const isBarrel = source.statements.every(s => ts.isExportDeclaration(s) && s.moduleSpecifier !== undefined)
    if (isBarrel && source.statements.length > 0) wrong.push(file)
  }
  t.same(wrong, [])
})

/** Words a type declaration is made of: names of members and literals of a union, at its own level. */
function wordsOf(node: ts.Node): Set<string> {
  const words = new Set<string>()
  visit(node, inner => {
    if (ts.isLiteralTypeNode(inner) && ts.isStringLiteral(inner.literal)) words.add(inner.literal.text.toLowerCase())
    if ((ts.isPropertySignature(inner) || ts.isEnumMember(inner)) && inner.name !== undefined)
      words.add(inner.name.getText().toLowerCase())
  })
  return words
}

t.test("naming.3 empty, missing and invalid are declared once", async t => {
  const found: string[] = []
  for (const { file, source } of MODULES) {
    visit(source, node => {
      if (!ts.isTypeAliasDeclaration(node) && !ts.isInterfaceDeclaration(node) && !ts.isEnumDeclaration(node)) return
      const words = wordsOf(node)
      if (["empty", "missing", "invalid"].filter(word => words.has(word)).length >= 2)
        found.push(`${file} ${node.name.text}`)
    })
  }
  t.same(found, ["abi/issue.ts Issue"])
})

t.test("naming.4 one class extends Error and no text of an error is compared", async t => {
  const classes: string[] = []
  const compared: string[] = []
  const isText = (node: ts.Node) => ts.isPropertyAccessExpression(node) && node.name.text === "message"
  // Whether there is a text at all may be asked; what it says may not.
  const saysText = (node: ts.Node) => !["undefined", "null", '""'].includes(node.getText())
  const comparisons = [
    ts.SyntaxKind.EqualsEqualsEqualsToken,
    ts.SyntaxKind.ExclamationEqualsEqualsToken,
    ts.SyntaxKind.EqualsEqualsToken,
    ts.SyntaxKind.ExclamationEqualsToken,
  ]
  for (const { file, source } of MODULES) {
    visit(source, node => {
      if (ts.isClassLike(node)) {
        const parents = (node.heritageClauses ?? []).flatMap(clause =>
          clause.types.map(type => type.expression.getText()),
        )
        if (parents.some(parent => /(?:^|\.)\w*Error$/.test(parent))) classes.push(`${file} ${node.name?.text ?? ""}`)
      }
      const line = source.getLineAndCharacterOfPosition(node.getStart()).line + 1
      const isCompared =
        ts.isBinaryExpression(node) &&
        comparisons.includes(node.operatorToken.kind) &&
        ((isText(node.left) && saysText(node.right)) || (isText(node.right) && saysText(node.left)))
      if (isCompared) compared.push(`${file}:${line}`)
      const isAsked =
        ts.isCallExpression(node) &&
        ts.isPropertyAccessExpression(node.expression) &&
        isText(node.expression.expression) &&
        ["includes", "startsWith", "endsWith", "match", "indexOf"].includes(node.expression.name.text)
      if (isAsked) compared.push(`${file}:${line}`)
    })
  }
  t.same(classes, ["abi/error.ts CtxError"])
  t.same(compared, [])
})
