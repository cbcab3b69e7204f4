import { codeOf } from "../../abi/error.js"
import { type Cell, CtxCommand } from "../../client/command.js"
import { findParentPid, findRole, type Kin, listAgentNames, readKin } from "../../client/family.js"

interface Row {
  name: string
  parent: string | undefined
  cells: Cell[]
}

/** `ctx agent ps`: all agents as a tree. Implements ctx-coreutils 6 (ps). */
export default class Ps extends CtxCommand {
  static override summary = "List all agents with their state, children below their parents"
  static override description =
    "NAME, STATUS, PID, MODEL, LIFE, ROLE, PPID. A name has two spaces before it for each level. ready or busy with a dead pid is dead. Nothing is started."
  static override examples = ["<%= config.bin %> agent ps", "<%= config.bin %> agent ps --json"]

  async run(): Promise<unknown> {
    await this.parse(Ps)
    const places = this.mountedPlaces()
    const rows: Row[] = []
    for (const name of listAgentNames(places)) {
      try {
        rows.push(await readRow(name, await readKin(places, name)))
      } catch (error) {
        if (codeOf(error) !== "ENOENT") this.report(error)
        // Its other controls may be good; it is shown with what can be told of it.
        if (codeOf(error) === "EINVAL") rows.push({ name, parent: undefined, cells: [] })
      }
    }
    const shown = arrange(rows)
    const columns = ["name", "status", "pid", "model", "life", "role", "ppid"]
    const table = await this.table(
      columns,
      shown.map(({ row, depth }) => [`${"  ".repeat(depth)}${row.name}`, ...row.cells, ...absent(row.cells)]),
    )
    return table.map((one, i) => ({ depth: shown[i]!.depth, ...one, name: shown[i]!.row.name }))
  }
}

const CELLS = 6

function absent(cells: Cell[]): Cell[] {
  return Array.from({ length: CELLS - cells.length }, () => null)
}

async function readRow(name: string, kin: Kin): Promise<Row> {
  const { controls } = kin
  const status = await controls.readStatus()
  const pid = status === "dead" ? undefined : await controls.readPid()
  const [model, life] = [await controls.readValue("model"), await controls.readValue("life")]
  const ppid = pid === undefined ? undefined : findParentPid(pid)
  return { name, parent: kin.parent?.agent, cells: [status, pid, model || null, life || null, findRole(name), ppid] }
}

/** Children below parents, siblings by name. What belongs to a missing parent or to a cycle stands at the top. */
function arrange(rows: Row[]): { row: Row; depth: number }[] {
  const names = new Set(rows.map(row => row.name))
  const shown: { row: Row; depth: number }[] = []
  const seen = new Set<string>()
  const add = (row: Row, depth: number) => {
    if (seen.has(row.name)) return
    seen.add(row.name)
    shown.push({ row, depth })
    for (const child of rows) if (child.parent === row.name) add(child, depth + 1)
  }
  for (const row of rows) if (row.parent === undefined || !names.has(row.parent)) add(row, 0)
  for (const row of rows) add(row, 0)
  return shown
}
