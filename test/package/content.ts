// needs: root dpkg
// What lies in the Debian package, and in an installation with a prefix and DESTDIR of its own.
import { execFileSync } from "node:child_process"
import { createHash } from "node:crypto"
import { existsSync, lstatSync, readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { gunzipSync } from "node:zlib"
import t from "tap"
import { makeDir, ROOT } from "../harness/product.js"
import { cleanEnv, runProgram } from "../harness/program.js"
import { buildPackage, makeNextRelease } from "./fixture/release.js"

interface Manifest {
  commands: Record<
    string,
    {
      id: string
      summary: string
      aliases: string[]
      args: Record<string, { name: string; description: string }>
      flags: Record<string, { name: string; description: string }>
    }
  >
}

const manifest: Manifest = JSON.parse(readFileSync(join(ROOT, "oclif.manifest.json"), "utf8"))
const text = (...command: string[]) => execFileSync(command[0]!, command.slice(1), { encoding: "utf8", maxBuffer: 1e8 })
/** Names in a directory, in byte order; none when it is not there. */
const listNames = (dir: string) => (existsSync(dir) ? readdirSync(dir).sort() : [])
const hash = (path: string) => createHash("sha256").update(readFileSync(path)).digest("hex")

t.test("the package", async t => {
  const path = await buildPackage()
  const root = makeDir("cortexfs-unpacked")
  text("dpkg-deb", "--raw-extract", path, root)
  const read = (file: string) => readFileSync(join(root, file), "utf8")
  const page = (name: string) => gunzipSync(readFileSync(join(root, `usr/share/man/man1/${name}.1.gz`))).toString()

  t.test("the same tree gives the same bytes", async t => {
    // A copy, which nobody builds or commits to meanwhile; the second time with a later clock and another umask.
    const from = await makeNextRelease()
    const once = await buildPackage(from)
    const umask = process.umask(0o077)
    t.teardown(() => process.umask(umask))
    const again = await buildPackage(from)
    t.not(again, once)
    t.equal(hash(again), hash(once))
  })

  t.test("it is named by version and architecture and depends on what its programs need", async t => {
    const { version } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"))
    t.match(path, new RegExp(`/cortexfs_${version}_${text("dpkg", "--print-architecture").trim()}\\.deb$`))
    const depends = text("dpkg-deb", "--field", path, "Depends")
    t.match(depends, /^bubblewrap \(>= 0\.8\), fuse3, libc6 \(>= 2\.[0-9]+\), libstdc\+\+6 \(>= [0-9.]+\)\n$/)
    for (const [, name = "", version = ""] of depends.matchAll(/(\S+) \(>= ([^)]+)\)/g)) {
      const installed = text("dpkg-query", "-W", "-f", "$" + "{Version}", name)
      t.equal((await runProgram(["dpkg", "--compare-versions", installed, "ge", version])).code, 0, name)
    }
    t.match(text("dpkg-deb", "--field", path, "Description"), process.execPath)
    t.match(read("DEBIAN/postinst"), `\nnode=${process.execPath}\n`)
  })

  t.test("every file belongs to root, can be read by all, and has its sum", async t => {
    const rows = text("dpkg-deb", "--contents", path).trim().split("\n")
    const closed = rows.filter(row => !/^(-rw-r--r--|-rwxr-xr-x|drwxr-xr-x|lrwxrwxrwx) root\/root /.test(row))
    t.same(closed, [])
    text("sh", "-ec", `cd ${root}; md5sum --quiet --strict --check DEBIAN/md5sums`)
    const files = rows.filter(row => row.startsWith("-"))
    t.equal(read("DEBIAN/md5sums").trim().split("\n").length, files.length)
    t.notOk(
      rows.find(row => / \.\/(var|etc|run|home|ctx)\//.test(row)),
      "data, settings and mount points are none of its files",
    )
    t.notMatch(rows.join("\n"), /node-gyp|node-addon-api/)
  })

  t.test("programs name the Node.js of the build by absolute path, units the programs", async t => {
    const programs = readdirSync(join(root, "usr/bin"))
    t.same(
      programs.sort(),
      readdirSync(join(root, "usr/lib/cortexfs/bin"))
        .filter(name => name !== "package.json")
        .sort(),
    )
    for (const name of programs) {
      t.equal(read(`usr/bin/${name}`).split("\n")[0], `#!/usr/bin/env -S -u NODE_EXTRA_CA_CERTS ${process.execPath}`)
    }
    for (const [from, to] of [
      ["units", "usr/lib/systemd/system"],
      ["units/user", "usr/lib/systemd/user"],
    ] as const) {
      const units = listNames(join(ROOT, from)).filter(name => /\.(service|socket|target|timer)$/.test(name))
      t.same(listNames(join(root, to)), units, to)
      for (const unit of units) {
        const installed = read(`${to}/${unit}`)
        t.equal(installed, readFileSync(join(ROOT, from, unit), "utf8"), unit)
        const named = [...installed.matchAll(/^Exec\w+=-?(\/\S+)|file:\/\/(\S+)/gm)].map(
          ([, program, file]) => program ?? file,
        )
        t.ok(named.length > 0, unit)
        for (const path of named) t.ok(existsSync(join(root, path!)), `${unit}: ${path}`)
      }
    }
    for (const file of [
      "lib/sysusers.d/cortexfs.conf",
      "lib/tmpfiles.d/cortexfs.conf",
      "lib/systemd/system-preset/90-cortexfs.preset",
      "lib/systemd/user-preset/90-cortexfs.preset",
      "share/polkit-1/rules.d/cortexfs.rules",
      "share/doc/cortexfs/README.md",
      "share/doc/cortexfs/CHANGELOG.md",
      "share/doc/cortexfs/copyright",
    ])
      t.ok(lstatSync(join(root, "usr", file)).isFile(), file)
    t.same(readdirSync(join(root, "usr/share/doc/cortexfs/spec")).sort(), readdirSync(join(ROOT, "spec")).sort())
  })

  t.test("each command has a manual page with the texts of its help, each alias leads to it", async t => {
    const plain = (name: string) =>
      page(name)
        .replaceAll("\\-", "-")
        .replaceAll("\\&", "")
        .replace(/\\f[BIR]/g, "")
    for (const { id, summary, aliases, args, flags } of Object.values(manifest.commands)) {
      const name = ["ctx", ...id.split(":")].join("-")
      const shown = plain(name)
      t.match(shown, `\n.SH NAME\n${name} - ${summary}\n`, name)
      for (const arg of Object.values(args)) t.match(shown, `${arg.name.toUpperCase()}`, `${name} ${arg.name}`)
      for (const flag of Object.values(flags)) {
        t.match(shown, new RegExp(`^\\.TP\\n--${flag.name}\\b`, "m"), `${name} --${flag.name}`)
        if (flag.name !== "json") t.match(shown, flag.description)
      }
      for (const alias of aliases) {
        t.equal(page(["ctx", ...alias.split(":")].join("-")), `.so man1/${name}.1\n`)
      }
      t.match(plain("ctx"), `\n.TP\n${["ctx", ...id.split(":")].join(" ")}\n${summary}\n`)
    }
    // No control line but the macros of a manual page.
    const macros = /^\.(TH|SH|SS|TP|PP|RS|RE|BR|br|nf|fi|nh|hy|ad|so)( |$)/
    for (const file of readdirSync(join(root, "usr/share/man/man1"))) {
      for (const line of page(file.replace(/\.1\.gz$/, "")).split("\n")) {
        if (/^[.']/.test(line)) t.match(line, macros, `${file}: ${line}`)
      }
      // As gzip -n writes it: no time, no name.
      const bytes = readFileSync(join(root, "usr/share/man/man1", file))
      t.equal(bytes.readUInt32LE(4), 0)
      t.equal(bytes[3], 0)
    }
  })

  t.test("no script of it asks, and each is accepted by the shell", async t => {
    for (const name of ["preinst", "postinst", "prerm", "postrm"]) {
      t.match(read(`DEBIAN/${name}`), /^#!\/bin\/sh\n/)
      t.notMatch(read(`DEBIAN/${name}`), /debconf|db_input|\bread\b|@[A-Z_]+@|rm -r/)
      text("sh", "-n", join(root, "DEBIAN", name))
    }
  })
})

t.test("an installation with DESTDIR and another prefix names its programs and documents there", async t => {
  const dir = makeDir("cortexfs-destdir")
  const env = cleanEnv({ DESTDIR: dir })
  const installed = await runProgram([process.execPath, join(ROOT, "scripts/install.js"), "/opt/cortexfs"], { env })
  t.same([installed.code, installed.stdout], [0, "installed /opt/cortexfs/lib/cortexfs\n"], installed.stderr)
  t.same(readdirSync(dir), ["opt"])
  const at = (path: string) => join(dir, "opt/cortexfs", path)
  const unit = readFileSync(at("lib/systemd/system/cortexfs@.service"), "utf8")
  t.match(unit, "\nExecStart=/opt/cortexfs/bin/cortexfs-mount --source ")
  t.match(unit, "\nExecStopPost=-/opt/cortexfs/bin/cortexfs-mount --abort ")
  t.match(unit, "\nDocumentation=file:///opt/cortexfs/share/doc/cortexfs/spec/units.md\n")
  t.match(readFileSync(at("share/polkit-1/rules.d/cortexfs.rules"), "utf8"), '"/usr/bin/cat"', "a program of the host")
  t.ok(existsSync(at("share/zsh/site-functions/_ctx")))
  const ended = await runProgram([at("bin/ctx"), "abi"])
  t.match(ended.stdout, /^abi=1\n/, ended.stderr)
})

t.test("a package of a pre-release sorts before its release", async t => {
  const path = await buildPackage(await makeNextRelease("1.0.0-rc.1"))
  t.equal(text("dpkg-deb", "--field", path, "Version"), "1.0.0~rc.1\n")
})
