// A uid need have no account, and asking for one costs a round to the name service. The command-line library asks for
// shell and home as it loads, where the environment does not say them; so it is told something while it looks.

const STAND_INS = { SHELL: "/bin/sh", HOME: "/" }

/** Runs `load` with SHELL and HOME set where they are not, and takes what was set away again. */
export async function withStandIns<T>(load: () => Promise<T>): Promise<T> {
  const missing = Object.entries(STAND_INS).filter(([name]) => !process.env[name])
  for (const [name, value] of missing) process.env[name] = value
  try {
    return await load()
  } finally {
    for (const [name] of missing) delete process.env[name]
  }
}
