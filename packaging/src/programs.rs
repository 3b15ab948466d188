//! The programs of the packages, and the parts of their manual pages that no command line has.
//!
//! # Concurrency
//! Plain values.

use clap::{Command, CommandFactory};

/// A program with a manual page and completions.
pub(crate) struct Program {
    /// The whole command line.
    pub(crate) command: Command,
    /// Section of the manual.
    pub(crate) section: &'static str,
    /// EXIT STATUS, unless the help has it.
    pub(crate) exit_status: &'static str,
    /// Paths and their contents.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// EXAMPLES, unless the help has them.
    pub(crate) examples: &'static str,
    /// Pages such as "mount(8)".
    pub(crate) see_also: &'static [&'static str],
}

impl Program {
    /// Returns the name of the program.
    pub(crate) fn name(&self) -> &str {
        self.command.get_name()
    }
}

const USUAL_EXIT_STATUS: &str =
    "0 after success, SIGTERM or SIGINT, 1 after a failure, 2 for an invalid command line.";

const KEY: (&str, &str) = (
    "/etc/rfs/NAME.key",
    "A key, of mode 600, for an option --key. By convention; no program needs this path.",
);

/// Returns all programs of the packages.
pub(crate) fn programs() -> Vec<Program> {
    vec![server(), fuse(), paging(), jakiro_server(), nessie(), nessie_node(), rstore()]
}

fn server() -> Program {
    Program {
        command: rfs_server::run::command(),
        section: "8",
        exit_status: "",
        files: &[
            (
                "/etc/rfs/server.conf",
                "Options of the server that systemd starts as rfs-server.service, unless server.toml exists.",
            ),
            (
                "/etc/rfs/server.toml",
                "Options of the server, for --config. By convention; any other path works.",
            ),
            (
                "/etc/rfs/keys",
                "Keys of clients, of mode 600, for --keys. By convention; any other path works.",
            ),
            ("/run/rfs/rfs.sock", "Unix socket of the server of root."),
            ("/run/rfs/rfs.sock.status", "Control socket for \"rfs-server status\"."),
            ("/var/lib/rfs", "Snapshots of rfs-server.service, if its options have --persist /var/lib/rfs."),
        ],
        examples: "",
        see_also: &["rfs-fuse(8)", "systemctl(1)"],
    }
}

fn fuse() -> Program {
    Program {
        command: rfs_fuse::run::command(),
        section: "8",
        exit_status: "",
        files: &[
            ("/etc/rfs/NAME.mount", "Source, directory and options of the mount rfs-mount@NAME.service."),
            ("/etc/rfs/mounts.toml", "Options of mounts, for --config. By convention; any other path works."),
            KEY,
            ("/run/rfs/rfs.sock", "Unix socket of the server of root."),
            ("/run/rfs-fuse", "Control sockets of the mounts of root, for \"rfs-fuse status\"."),
            ("/sbin/mount.fuse.rfs", "Link to this program, for mount(8) and /etc/fstab."),
            ("/etc/fuse.conf", "\"user_allow_other\" permits --allow-other to ordinary users."),
        ],
        examples: "",
        see_also: &["rfs-server(8)", "mount(8)", "fstab(5)", "fusermount3(1)"],
    }
}

fn paging() -> Program {
    Program {
        command: rfs_paging::cli::Cli::command(),
        section: "1",
        exit_status: "0 after success, SIGTERM or SIGINT, 1 after a failure, 2 for an invalid command line. \
                      \"run\" becomes the given program, and has its exit status.",
        files: &[
            KEY,
            ("/usr/lib/rfs/librfs_paging_preload.so", "The preload library of \"run\"."),
            ("/run/rfs-paging", "Swap areas, and control sockets of the pagers of root, for \"status\"."),
        ],
        examples: "Lend 4 GiB of this machine to pagers with the key of a file:\n    \
                       rfs-paging lend --memory 4g --listen 10.0.0.7:7450 --key /etc/rfs/pagers.key\n\
                   Run a program with 256 MiB of local pages:\n    \
                       rfs-paging run --local 256m --server 10.0.0.7:7450 --key /etc/rfs/pagers.key -- redis-server",
        see_also: &["rfs-server(8)", "swapon(8)", "nbd-client(8)"],
    }
}

fn jakiro_server() -> Program {
    Program {
        command: jakiro::cli::Cli::command(),
        section: "8",
        exit_status: USUAL_EXIT_STATUS,
        files: &[KEY],
        examples: "4 GiB for clients with the key of a file:\n    \
                       jakiro-server --memory 4g --listen 10.0.0.7:7460 --key /etc/rfs/cache.key\n\
                   For clients of memcached on this machine:\n    \
                       jakiro-server --memory 1g --listen unix:/run/jakiro.sock --text 127.0.0.1:11211",
        see_also: &["rfs-server(8)", "memcached(1)"],
    }
}

fn nessie() -> Program {
    Program {
        command: nessie::cli::client::Cli::command(),
        section: "1",
        exit_status: "0 after success, 1 if the key has no value, 2 after a failure or for an invalid command line.",
        files: &[KEY],
        examples: "nessie --node 10.0.0.7:7460 --key /etc/rfs/nodes.key put colour blue\n\
                   nessie --node 10.0.0.7:7460 --key /etc/rfs/nodes.key get colour",
        see_also: &["nessie-node(8)"],
    }
}

fn nessie_node() -> Program {
    Program {
        command: nessie::cli::node::Cli::command(),
        section: "8",
        exit_status: USUAL_EXIT_STATUS,
        files: &[KEY],
        examples: "Node 0 of the nodes in a file:\n    \
                       nessie-node --nodes /etc/rfs/nodes --id 0 --index 1m --data 64m --key /etc/rfs/nodes.key",
        see_also: &["nessie(1)", "rfs-server(8)"],
    }
}

fn rstore() -> Program {
    Program {
        command: rstore::cli::Cli::command(),
        section: "1",
        exit_status: USUAL_EXIT_STATUS,
        files: &[KEY],
        examples: "A pool with one store, and its state:\n    \
                       rstore master --listen unix:/tmp/master.sock --chunk 1m &\n    \
                       rstore store --master unix:/tmp/master.sock --memory 1g --listen unix:/tmp/store.sock &\n    \
                       rstore status unix:/tmp/master.sock",
        see_also: &["rfs-server(8)"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/user/options.md has a row for each option of these programs, and no row for another
    /// one. Catches an option that came, went or was renamed without the page.
    #[test]
    fn the_page_of_options_has_each_option() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/user/options.md"));
        let page = page.expect("the page of options");
        for Program { command, .. } in [server(), fuse()] {
            let heading = format!("{}\n", command.get_name());
            let section = page.split("\n## ").find(|section| section.starts_with(&heading)).expect(&heading);
            let name = |line: &str| Some(line.strip_prefix("| `--")?.split([' ', '`']).next()?.to_owned());
            let mut documented: Vec<String> = section.lines().filter_map(name).collect();
            let options = command.get_arguments().filter(|option| !option.is_hide_set());
            let mut options: Vec<String> =
                options.filter_map(|option| option.get_long()).map(Into::into).collect();
            documented.sort_unstable();
            options.sort_unstable();
            assert_eq!(documented, options, "{heading}");
        }
    }
}
