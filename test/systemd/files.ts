// needs: root fuse bwrap socat systemd
// The shipped files as such: what the service manager says of them, and what they hold.
import { readdirSync, readFileSync, statSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { ROOT } from "../harness/product.js"
import { cleanEnv } from "../harness/program.js"
import { bootSystem, listUnits, listUserUnits } from "../harness/systemd.js"

const UNITS = join(ROOT, "units")
const read = (name: string) => readFileSync(join(UNITS, name), "utf8")
/** An instance of a template: of the collection a user that every machine has, of all others an agent. */
const instance = (name: string) => name.replace("@.", name.startsWith("cortexfs-session-gc") ? "@daemon." : "@coder.")
/** The column of units.md 3 that completes a service. */
const COLUMN: Record<string, string> = {
  "cortexfs-storage.service": "storage",
  "cortexfs.service": "host",
  "cortexfs@.service": "view",
  "cortexfs-agent@.service": "agent",
  "cortexfs-session-gc@.service": "gc",
}
const LETTERS: Record<string, string> = {
  A: "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER",
  B: "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_SYS_ADMIN CAP_FSETID",
  C: "CAP_SETUID CAP_SETGID",
  U: "AF_UNIX",
  I: "AF_INET AF_INET6",
  N: "AF_NETLINK",
  S: "@system-service @pkey",
  M: "@system-service @pkey @mount",
  L: "sethostname seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self",
}

/** The directives of a unit file: `Section.Key` and value, in file order. */
function parseUnit(text: string): [key: string, value: string][] {
  const found: [string, string][] = []
  let section = ""
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue
    const header = /^\[(\w+)\]$/.exec(line)
    if (header) section = header[1]!
    else found.push([`${section}.${line.slice(0, line.indexOf("="))}`, line.slice(line.indexOf("=") + 1)])
  }
  return found
}

/** The table of units.md 3: per column its directives, and the greatest exposure that is allowed. */
function readTable(): Map<string, { directives: [string, string][]; mostExposed: number }> {
  const text = readFileSync(join(ROOT, "spec/units.md"), "utf8")
  const rows = text
    .slice(text.indexOf("\n## 3."), text.indexOf("\n## 4."))
    .split("\n")
    .filter(line => line.startsWith("|"))
    .map(line =>
      line
        .slice(1, -1)
        .split("|")
        .map(cell => cell.trim()),
    )
  const columns = rows[0]!.slice(1)
  const table = new Map(columns.map(name => [name, { directives: [] as [string, string][], mostExposed: 0 }]))
  const expand = (cell: string) =>
    cell
      .split(" ")
      .map(word => LETTERS[word] ?? word)
      .join(" ")
  for (const [label = "", ...cells] of rows.slice(2)) {
    columns.forEach((column, at) => {
      const cell = (cells[at] || cells[0]!) === "as host" ? cells[columns.indexOf("host")]! : cells[at] || cells[0]!
      const entry = table.get(column)!
      if (label.startsWith("**exposure")) {
        entry.mostExposed = Number(cell.split("/")[1])
        return
      }
      if (cell === "–") return
      const names = [...label.matchAll(/`([A-Za-z]+)=([a-z]*)`/g)].map(match => ({ name: match[1]!, value: match[2]! }))
      const add = (name: string, value: string) => entry.directives.push([`Service.${name}`, value])
      if (label.includes("KeyringMode")) {
        const values = cells[0]!.replace(" in all columns", "").split(" / ")
        for (const [i, { name }] of names.entries()) add(name, values[i]!)
      } else if (label.includes("DevicePolicy")) {
        add("DevicePolicy", "closed")
        add("DeviceAllow", "/dev/fuse rw")
      } else if (label.includes("SystemCallFilter")) {
        const [first, second] = (cell === "as gc" ? cells[columns.indexOf("gc")]! : cell).split("`")
        add("SystemCallFilter", expand(first!.trim()))
        add("SystemCallFilter", second!)
      } else {
        for (const { name, value } of names) {
          const given = value !== "" ? value : cell === "empty" ? "" : expand(cell.replaceAll("`", ""))
          add(name, given)
        }
      }
    })
  }
  return table
}

t.test("the shipped units", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const services = listUnits().filter(name => name.endsWith(".service"))
  const table = readTable()

  t.test("every service has its column, and every file its documentation and a reason above each group", async t => {
    t.same(Object.keys(COLUMN).sort(), services)
    for (const unit of [...listUnits(), ...listUserUnits().map(name => `user/${name}`)]) {
      t.ok(
        parseUnit(read(unit)).some(([key, value]) => key === "Unit.Documentation" && value.endsWith("/spec/units.md")),
      )
      const groups = read(unit).split("\n\n")
      for (const group of groups) {
        const lines = group.split("\n").filter(line => line !== "" && !line.startsWith("["))
        const isHead = lines.some(line => /^(Description|Documentation|# )/.test(line))
        t.ok(isHead, `${unit}: ${lines[0]}`)
      }
    }
  })

  t.test(
    "units.1 systemd-analyze verify of each unit of the system and of users exits 0 and prints nothing",
    async t => {
      const verify = async (manager: "system" | "user", units: string[]) => {
        const env = { ...cleanEnv(), HOME: "/root", XDG_RUNTIME_DIR: "/run" }
        for (const unit of units) {
          const path = `/usr/lib/systemd/${manager}/${instance(unit)}`
          const ended = await system.run(["systemd-analyze", `--${manager}`, "verify", path], { env })
          t.same([ended.code, ended.stdout, ended.stderr], [0, "", ""], `${manager} ${unit}`)
        }
      }
      await verify("system", listUnits())
      await verify("user", listUserUnits())
    },
  )

  t.test("a unit of a user is that of the system but for what units.md 2.12 says", async t => {
    const text = readFileSync(join(ROOT, "spec/units.md"), "utf8")
    const section = text.slice(text.indexOf("### 2.12"), text.indexOf("\n## 3."))
    const rows = section.match(/the rows (.*); the rest/)![1]!.split(", ")
    const kept = (key: string) =>
      rows.some(row => key === row || (row.endsWith("*") && key.startsWith(row.slice(0, -1))))
    const columnKeys = new Set([...table.values()].flatMap(({ directives }) => directives.map(([key]) => key)))
    const place = (value: string) =>
      value
        .replaceAll("/var/lib/cortexfs", "%h/.local/state/cortexfs")
        .replaceAll("/run/cortexfs", "%t/cortexfs")
        .replace(/ \/ctx$/, " %t/cortexfs/ctx")
        .replace("multi-user.target", "default.target")
    const ABSENT = ["Service.LoadCredential", "Service.StateDirectory", "Service.StateDirectoryMode"]
    const expected = (unit: string): [string, string][] =>
      parseUnit(read(unit)).flatMap(([key, value]): [string, string][] => {
        const name = key.slice(key.indexOf(".") + 1)
        if (ABSENT.includes(key) || ["RequiresMountsFor", "OOMScoreAdjust"].includes(name)) return []
        if (columnKeys.has(key)) {
          const isMount = ["host", "view"].includes(COLUMN[unit]!)
          return (isMount ? name === "UMask" : kept(name)) ? [[key, value]] : []
        }
        if (key === "Unit.Description") return [[key, value.replace(" at /ctx", "")]]
        if (name === "SocketMode") return [[key, "0600"]]
        if (name === "DirectoryMode") return [[key, "0700"]]
        if (unit === "cortexfs-storage.service" && name === "ExecStart") return [[key, value.replace(/ \S+$/, "")]]
        return [[key, place(value)]]
      })
    const ADDED: Record<string, string[]> = {
      "cortexfs-storage.service": ["Unit.AssertUser=!root", "Service.Environment=XDG_STATE_HOME=%h/.local/state"],
      "cortexfs-agent@.service": ["Service.Environment=XDG_STATE_HOME=%h/.local/state"],
    }
    const sort = (list: [string, string][]) => list.map(pair => pair.join("=")).sort()
    const shared = listUserUnits().filter(unit => listUnits().includes(unit))
    t.equal(shared.length, 7)
    for (const unit of shared) {
      const wanted = [...sort(expected(unit)), ...(ADDED[unit] ?? [])].sort()
      t.same(sort(parseUnit(read(`user/${unit}`))), wanted, unit)
    }
  })

  t.test("each file holds exactly what section 2 and its column of section 3 say", async t => {
    const text = readFileSync(join(ROOT, "spec/units.md"), "utf8")
    /** The one ini block of a section of chapter 2, and of its head, which every notify service has too. */
    const block = (from: string) => {
      const part = text.slice(text.indexOf(from), text.indexOf("\n##", text.indexOf(from) + 5))
      return parseUnit(/```ini\n([^`]*)```/.exec(part)![1]!)
    }
    const common = block("## 2. Unit files")
    const sections: [heading: string, unit: string][] = [
      ["### 2.1", "cortexfs.target"],
      ["### 2.2", "cortexfs-storage.service"],
      ["### 2.3", "cortexfs.service"],
      ["### 2.5", "cortexfs-agent@.socket"],
      ["### 2.6", "cortexfs-agent@.service"],
      ["### 2.8", "cortexfs-session-gc@.service"],
    ]
    const sort = (list: [string, string][]) => list.map(pair => pair.join("=")).sort()
    for (const [heading, unit] of sections) {
      const isNotify = new RegExp(`^${heading.replace(".", "\\.")} .*\\(notify\\)$`, "m").test(text)
      const column = COLUMN[unit] === undefined ? [] : table.get(COLUMN[unit])!.directives
      const wanted = [...block(heading), ...(isNotify ? common : []), ...column]
      t.same(sort(parseUnit(read(unit)).filter(([key]) => key !== "Unit.Documentation")), sort(wanted), unit)
    }
    // A view is the host view with some lines in place of its own, whose keys tell which.
    const section = text.slice(text.indexOf("### 2.4"), text.indexOf("### 2.5"))
    const own = [.../^[A-Z][A-Za-z]+=.*$/gm[Symbol.matchAll](section)].map(([line]) => line)
    const host = sort(parseUnit(read("cortexfs.service"))).map(line => line.replace(/^\w+\./, ""))
    const keys = own.map(line => line.slice(0, line.indexOf("=")))
    const view = [
      ...host.filter(line => !keys.includes(line.slice(0, line.indexOf("=")))),
      ...own,
      "DefaultInstance=coder",
    ]
    t.same(
      sort(parseUnit(read("cortexfs@.service")))
        .map(line => line.replace(/^\w+\./, ""))
        .sort(),
      view.sort(),
    )
  })

  t.test("the collection of the per-user set is the system's with what 2.12 says in place of its own", async t => {
    const kept = /^(UMask|NoNewPrivileges|Restrict|LockPersonality|KeyringMode|SystemCall)/
    const columns = new Set([...table.values()].flatMap(({ directives }) => directives.map(([key]) => key)))
    const lines = (name: string) => parseUnit(read(name)).map(([key, value]) => `${key}=${value}`)
    const expected = parseUnit(read("cortexfs-session-gc@.service"))
      .filter(([key]) => key !== "Service.User" && (!columns.has(key) || kept.test(key.replace("Service.", ""))))
      .map(([key, value]) => `${key}=${value.replace(" for user %i", "").replace(/^\/ctx$/, "%t/cortexfs/ctx")}`)
    const own = "Service.Environment=CTX_ROOT=%t/cortexfs/ctx"
    t.same(lines("user/cortexfs-session-gc.service").sort(), [...expected, own].sort())
    const timer = lines("cortexfs-session-gc@.timer").map(line => line.replace(" for user %i", ""))
    t.same(lines("user/cortexfs-session-gc.timer"), timer)
  })

  t.test(
    "units.2 (units of this release) scores are at or below the table, and the service lines are those of the table",
    async t => {
      const known = new Set([...table.values()].flatMap(({ directives }) => directives.map(([key]) => key)))
      for (const unit of services) {
        const { directives, mostExposed } = table.get(COLUMN[unit]!)!
        const text = await system.text(["systemd-analyze", "security", "--offline=true", "--no-pager", instance(unit)])
        const score = Number(/exposure level for \S+ (\d+\.\d+)/.exec(text)?.[1])
        t.ok(mostExposed > 0 && score > 0, `${unit}: both numbers are there`)
        t.ok(score <= mostExposed, `${unit}: ${score} is at most ${mostExposed}`)
        const shipped = parseUnit(read(unit)).filter(([key]) => known.has(key))
        const sort = (list: [string, string][]) => list.map(pair => pair.join("=")).sort()
        t.same(sort(shipped), sort(directives), unit)
      }
    },
  )

  t.test("units.3 no file has a directive that is not allowed", async t => {
    const files = readdirSync(UNITS, { recursive: true, encoding: "utf8" }).filter(name =>
      statSync(join(UNITS, name)).isFile(),
    )
    t.ok(files.length >= 10)
    for (const name of files.filter(name => !name.endsWith(".md"))) {
      const code = read(name).replaceAll(/^(#|\/\/).*$/gm, "")
      t.notMatch(code, /EnvironmentFile=|PassEnvironment=|MemoryDenyWriteExecute=|umount -l|\b(ba|da)?sh\b/, name)
    }
    const namespace =
      /^(Service\.(Private|Protect(System|Home|Proc|Kernel|Control)|ProcSubset|ReadWrite|ReadOnly|Inaccessible|Exec|NoExec|Temporary|Bind|Root|Mount|Extension|DynamicUser|StateDirectory|RuntimeDirectory|LogsDirectory|CacheDirectory|ConfigurationDirectory))/
    for (const unit of ["cortexfs.service", "cortexfs@.service"].flatMap(name => [name, `user/${name}`])) {
      const found = parseUnit(read(unit)).filter(([key]) => namespace.test(key) && !/Exec(Start|StopPost)$/.test(key))
      t.same(found, [], unit)
    }
  })
})
