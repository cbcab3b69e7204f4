// Manual pages in plain roff, made from the texts of `--help`: `ctx` and one page a command, such as `ctx-agent-send`.
// An alias is a page that shows the other one.

const SECTION = 1
const EXITS = [
  ["0", "success, also with an empty result"],
  ["1", "what was asked for is not there, or cannot be done"],
  ["2", "wrong use or input"],
  ["13", "not permitted"],
  ["69", "not available, or busy"],
  ["70", "a fault of ctx"],
  ["130", "cancelled or interrupted"],
]
const VARIABLES = [
  ["CTX_ROOT", "where the tree is mounted; /ctx, else the caller's own"],
  ["CTX_HOME", "the caller's home in the tree; $CTX_ROOT/home/UID"],
  ["CTX_PATH", "directories of tools; $CTX_ROOT/tool:$CTX_HOME/tool"],
  ["NO_COLOR", "set: no colour in help"],
]

/** Text that roff shows as it is. @param {string} text */
function escapeRoff(text) {
  return text
    .replaceAll("\\", "\\e")
    .replaceAll("-", "\\-")
    .replace(/^(?=[.'])/gm, "\\&")
}

const bold = text => `\\fB${escapeRoff(text)}\\fR`
const italic = text => `\\fI${escapeRoff(text)}\\fR`

/** The words of a command: `agent:send` is `ctx agent send`. */
export const wordsOf = (id, bin) => [bin, ...id.split(":")].join(" ")
const pageOf = (id, bin) => [bin, ...id.split(":")].join("-")

/**
 * Flags in the order of `--help`: as declared, --json last, with the text it has there.
 * @param {{flags: Record<string, {name: string, description?: string, hidden?: boolean}>}} command
 */
export function listFlags(command) {
  const flags = Object.values(command.flags).filter(flag => !flag.hidden)
  const json = flags.filter(flag => flag.name === "json")
  return [
    ...flags.filter(flag => flag.name !== "json"),
    ...json.map(flag => ({ ...flag, description: "print one JSON value instead of text" })),
  ]
}

/** Words that a flag's value can be, or its name. */
export const valueNameOf = flag => flag.helpValue ?? flag.name.toUpperCase()

const fill = (text, bin) => text.replace(/<%= *config\.bin *%>/g, bin)

function formatFlag(flag) {
  const name = bold(`--${flag.name}`)
  return flag.type === "option" ? `${name}=${italic(valueNameOf(flag))}` : name
}

function formatArgument(arg) {
  const name = `${italic(arg.name.toUpperCase())}${arg.multiple ? "..." : ""}`
  // The last mark keeps roff from taking the dots for the end of a sentence.
  return arg.required ? `${name}\\&` : `[${name}]\\&`
}

function heading(title, version) {
  return `.TH ${escapeRoff(title.toUpperCase())} ${SECTION} "" "CortexFS ${escapeRoff(version)}" "User Commands"\n`
}

const list = rows => rows.map(([head, text]) => `.TP\n${head}\n${escapeRoff(text)}\n`).join("")
const section = (title, body) => (body === "" ? "" : `.SH ${title}\n${body}`)

function formatCommand(command, product, bin) {
  const args = Object.values(command.args).filter(arg => !arg.hidden)
  const flags = listFlags(command)
  const usage = [
    bold(wordsOf(command.id, bin)),
    ...args.map(formatArgument),
    ...flags.map(flag => (flag.required ? formatFlag(flag) : `[${formatFlag(flag)}]`)),
  ]
  return [
    heading(pageOf(command.id, bin), product.version),
    section("NAME", `${escapeRoff(pageOf(command.id, bin))} \\- ${escapeRoff(command.summary ?? "")}\n`),
    section("SYNOPSIS", `.nh\n.ad l\n${usage.join("\n")}\n.ad b\n.hy\n`),
    section("DESCRIPTION", `${escapeRoff(fill(command.description ?? command.summary ?? "", bin))}\n`),
    section("ARGUMENTS", list(args.map(arg => [formatArgument(arg), describe(arg)]))),
    section("OPTIONS", list(flags.map(flag => [formatFlag(flag), describe(flag)]))),
    section("EXAMPLES", (command.examples ?? []).map(text => formatExample(fill(text, bin))).join("")),
    section("ALIASES", command.aliases.map(alias => `${bold(wordsOf(alias, bin))}\n`).join(".br\n")),
    section("SEE ALSO", `.BR ${bin} (${SECTION})\n`),
  ].join("")
}

function describe({ description = "", options, exclusive = [] }) {
  const choice = options ? `${description ? "; " : ""}one of ${options.join(", ")}` : ""
  const others = exclusive.length > 0 ? `; not with ${exclusive.map(name => `--${name}`).join(", ")}` : ""
  return `${description}${choice}${others}`
}

const formatExample = text => `.PP\n.nf\n.RS\n${escapeRoff(text)}\n.RE\n.fi\n`

function formatProgram(manifest, product, bin) {
  const commands = Object.values(manifest.commands).filter(command => !command.hidden)
  const topics = Object.entries(product.oclif.topics)
  const groups = [["", "", commands.filter(({ id }) => !id.includes(":"))]]
  for (const [topic, { description }] of topics) {
    groups.push([topic, description, commands.filter(({ id }) => id.slice(0, id.lastIndexOf(":")) === topic)])
  }
  const listed = groups.map(([topic, description, members]) => {
    const title = topic ? `.SS ${escapeRoff(wordsOf(topic, bin))}\n${escapeRoff(description)}\n` : ""
    return title + list(members.map(command => [bold(wordsOf(command.id, bin)), command.summary ?? ""]))
  })
  return [
    heading(bin, product.version),
    section("NAME", `${bin} \\- ${escapeRoff(product.description)}\n`),
    section("SYNOPSIS", `${bold(bin)}\n${italic("COMMAND")}\n[${italic("ARGUMENT")}...]\n`),
    section(
      "COMMANDS",
      `Each has a page of its own, such as ${bold(pageOf(commands.at(-1).id, bin))}.\n${listed.join("")}`,
    ),
    section(
      "OPTIONS",
      list([
        [bold("--help"), "print the help of a command or topic"],
        [bold("--version"), "print the version"],
      ]),
    ),
    section("ENVIRONMENT", list(VARIABLES.map(([name, text]) => [bold(name), text]))),
    section("EXIT STATUS", list(EXITS.map(([code, text]) => [bold(code), text]))),
    section(
      "FILES",
      list([
        [italic("/ctx"), "the tree, mounted by cortexfs.service"],
        [italic("/var/lib/cortexfs"), "stored generations, homes, shared spaces, secrets"],
        [italic("/etc/cortexfs"), "settings of this host; may be absent"],
        [italic("/run/user/UID/cortexfs/ctx"), "the tree of a user's own installation"],
        [italic("~/.local/state/cortexfs, ~/.config/cortexfs"), "what is stored of it, and its settings"],
        [italic("/usr/share/doc/cortexfs/spec"), "what every file, socket and command does"],
      ]),
    ),
  ].join("")
}

/**
 * All pages.
 * @param {{commands: Record<string, object>}} manifest oclif.manifest.json
 * @param {{version: string, description: string, oclif: {bin: string, topics: Record<string, {description: string}>}}} product package.json
 * @returns {Map<string, string>} file names such as `ctx-ls.1`, in byte order, with their text
 */
export function formatPages(manifest, product) {
  const { bin } = product.oclif
  const pages = new Map([[`${bin}.${SECTION}`, formatProgram(manifest, product, bin)]])
  for (const command of Object.values(manifest.commands)) {
    if (command.hidden) continue
    const page = `${pageOf(command.id, bin)}.${SECTION}`
    pages.set(page, formatCommand(command, product, bin))
    for (const alias of command.aliases) {
      pages.set(`${pageOf(alias, bin)}.${SECTION}`, `.so man${SECTION}/${page}\n`)
    }
  }
  return new Map([...pages].sort(([a], [b]) => (a < b ? -1 : 1)))
}
