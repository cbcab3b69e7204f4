// Completions of `ctx` for bash and zsh, made from the manifest of its commands. They are plain tables: completing a
// word starts no program. Names of agents are read from the mounted tree.
import { listFlags, valueNameOf } from "./man.js"

/** Every word that can follow a topic, with what it does: commands, topics, aliases of commands. */
function listWords(manifest, product) {
  const words = new Map()
  const add = (id, text) => {
    const at = id.lastIndexOf(":")
    const topic = at === -1 ? "" : id.slice(0, at).replaceAll(":", " ")
    if (!words.has(topic)) words.set(topic, new Map())
    words.get(topic).set(id.slice(at + 1), text)
  }
  for (const [topic, { description }] of Object.entries(product.oclif.topics)) add(topic, description)
  for (const { id, summary, aliases, hidden } of Object.values(manifest.commands)) {
    if (!hidden) for (const name of [id, ...aliases]) add(name, summary ?? "")
  }
  add("help", "Display help")
  return words
}

/** Every way to name a command, as words with blanks, with the command. */
function listCommands(manifest) {
  return Object.values(manifest.commands)
    .filter(command => !command.hidden)
    .flatMap(command => [command.id, ...command.aliases].map(id => [id.replaceAll(":", " "), command]))
    .sort(([a], [b]) => (a < b ? -1 : 1))
}

/** What a value is: a directory, an agent, words to choose from, or nothing that is known. */
function kindOf({ name, options }, value) {
  if (options) return { words: options }
  if (value === "DIR") return { dir: true }
  return name === "agent" ? { agent: true } : {}
}

function argumentKind(command, arg) {
  const isDir = command.id.startsWith("storage:") || arg.name === "source"
  return kindOf(arg, isDir ? "DIR" : "")
}

const quote = text => `'${text.replaceAll("'", "'\\''")}'`

/**
 * The completion that bash-completion loads for `ctx`.
 * @param {{commands: Record<string, object>}} manifest oclif.manifest.json
 * @param {{oclif: {bin: string, topics: Record<string, {description: string}>}}} product package.json
 */
export function formatBash(manifest, product) {
  const { bin } = product.oclif
  const next = [...listWords(manifest, product)].map(
    ([topic, words]) => `    ${quote(topic)}) words=${quote([...words.keys()].sort().join(" "))} ;;`,
  )
  const offer = kind =>
    kind.words ? `words=${quote(kind.words.join(" "))}` : kind.dir ? "kind=dir" : kind.agent ? "kind=agent" : undefined
  const flags = []
  const values = []
  const args = []
  for (const [words, command] of listCommands(manifest)) {
    const names = [...listFlags(command).map(flag => `--${flag.name}`), "--help"]
    flags.push(`    ${quote(words)}) words=${quote(names.join(" "))} ;;`)
    for (const flag of listFlags(command).filter(flag => flag.type === "option")) {
      values.push(`    ${quote(`${words} --${flag.name}`)}) ${offer(kindOf(flag, valueNameOf(flag))) ?? ":"} ;;`)
    }
    for (const [i, arg] of Object.values(command.args).entries()) {
      const offered = offer(argumentKind(command, arg))
      if (offered) args.push(`    ${quote(`${words} ${i}`)}) ${offered} ;;`)
    }
  }
  return `# Completion of ${bin} for bash.
_${bin}_next() {
  case $1 in
${next.join("\n")}
    *) return 1 ;;
  esac
}
_${bin}_flags() {
  case $1 in
${flags.join("\n")}
    *) words='--help' ;;
  esac
}
_${bin}_value() {
  case $1 in
${values.join("\n")}
    *) return 1 ;;
  esac
}
_${bin}_argument() {
  case $1 in
${args.join("\n")}
  esac
}
_${bin}() {
  local cur=\${COMP_WORDS[COMP_CWORD]} path='' words='' kind='' word last='' count=0 ended='' i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=\${COMP_WORDS[i]}
    if [[ $word == = ]]; then continue; fi
    if [[ -n $last ]]; then last=''; continue; fi
    if [[ -z $ended && $word == -- ]]; then ended=1; continue; fi
    if [[ -z $ended && $word == -* ]]; then
      if _${bin}_value "$path $word"; then last=$word; fi
      words='' kind=''
      continue
    fi
    if ((count == 0)) && _${bin}_next "$path" && [[ " $words " == *" $word "* ]]; then
      path=\${path:+$path }$word
    else
      ((count++))
    fi
    words=''
  done
  if [[ $cur == = ]]; then cur=''; fi
  words='' kind=''
  if [[ -n $last ]]; then
    _${bin}_value "$path $last"
  elif [[ -z $ended && $cur == -* ]]; then
    _${bin}_flags "$path"
  elif ((count > 0)) || ! _${bin}_next "$path"; then
    _${bin}_argument "$path $count"
  fi
  if [[ $kind == dir ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -d -- "$cur")
    return
  fi
  if [[ $kind == agent ]]; then
    for word in "\${CTX_ROOT:-/ctx}"/agent/*.d; do
      if [[ $word != *'*.d' ]]; then word=\${word##*/}; words+=" \${word%.d}"; fi
    done
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -F _${bin} ${bin}
`
}

/** Text inside a specification of _arguments, or inside a pair of _describe. */
const escapeZsh = text => text.replace(/[[\]:\\]/g, "\\$&")

/**
 * The completion that zsh's compinit finds for `ctx`.
 * @param {Parameters<typeof formatBash>[0]} manifest
 * @param {Parameters<typeof formatBash>[1]} product
 */
export function formatZsh(manifest, product) {
  const { bin } = product.oclif
  const act = kind =>
    kind.words ? `(${kind.words.join(" ")})` : kind.dir ? "_files -/" : kind.agent ? `_${bin}_agents` : " "
  const next = [...listWords(manifest, product)].map(([topic, words]) => {
    const pairs = [...words].sort(([a], [b]) => (a < b ? -1 : 1))
    return `    ${quote(topic)}) next=(${pairs.map(([word, text]) => quote(`${word}:${escapeZsh(text)}`)).join(" ")}) ;;`
  })
  const commands = listCommands(manifest).map(([words, command]) => {
    const flags = listFlags(command).map(flag => {
      const text = `${flag.type === "option" ? "=" : ""}[${escapeZsh(flag.description ?? "")}]`
      const value =
        flag.type === "option" ? `:${escapeZsh(valueNameOf(flag))}:${act(kindOf(flag, valueNameOf(flag)))}` : ""
      const others = (flag.exclusive ?? []).map(name => `--${name}`).join(" ")
      return quote(`${others && `(${others})`}--${flag.name}${text}${value}`)
    })
    const args = Object.values(command.args).map((arg, i) => {
      const place = arg.multiple ? "*" : `${i + 1}`
      return quote(
        `${place}:${arg.required || arg.multiple ? "" : ":"}${escapeZsh(arg.name)}:${act(argumentKind(command, arg))}`,
      )
    })
    return `    ${quote(words)}) _arguments -S '--help[print help]' ${[...flags, ...args].join(" ")} ;;`
  })
  return `#compdef ${bin}
# Completion of ${bin} for zsh.
_${bin}_agents() {
  local -a names
  names=("\${CTX_ROOT:-/ctx}"/agent/*.d(N:t:r))
  compadd -a names
}
_${bin}_next() {
  case $1 in
${next.join("\n")}
    *) next=(); return 1 ;;
  esac
}
_${bin}() {
  local where='' word
  local -a next
  local -i at=2
  while (( at < CURRENT )); do
    word=$words[at]
    _${bin}_next "$where" || break
    (( \${next[(I)$word:*]} )) || break
    where="\${where:+$where }$word"
    (( at++ ))
  done
  if (( at == CURRENT )) && _${bin}_next "$where" && [[ $words[CURRENT] != -* ]]; then
    _describe -t commands command next
    return
  fi
  # What follows the words of the command is what _arguments sees.
  (( at-- ))
  words=("$where" "\${(@)words[at+1,-1]}")
  (( CURRENT -= at - 1 ))
  case $where in
${commands.join("\n")}
    *) _arguments '--help[print help]' '--version[print the version]' ;;
  esac
}
_${bin} "$@"
`
}
