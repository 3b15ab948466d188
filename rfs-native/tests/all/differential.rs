//! Random operations of several users on several mounts, compared with a file system in memory.
//!
//! Each operation runs on one of the mounts and on a directory of tmpfs, which the test treats as a
//! root by `openat2`. Both have to have the same outcome: the same error number, or the same
//! result. The seed is printed, and RFS_SEED repeats a run.

mod local;
mod operation;

use rdmabox::ProviderKind;
use rfs_native::{Credentials, Mount};

use self::{
    local::Local,
    operation::{Operation, Outcome, Paths},
};
use crate::common::*;

const OPERATIONS: usize = 3000;

/// Returns the users of a run: root needs more of them.
fn users() -> Vec<Credentials> {
    let me = Credentials { umask: 0o022, ..Credentials::of_process() };
    if !me.is_root() {
        return vec![me];
    }
    let user =
        |uid, gid, groups: &[u32]| Credentials { groups: groups.to_vec(), ..Credentials::new(uid, gid) };
    vec![ROOT, user(1001, 2001, &[2003]), user(1002, 2002, &[2001])]
}

fn run(providers: &[ProviderKind], seed: u64, checksum: bool) {
    let server = TestServer::with(64 << 20, |config| config.checksum = checksum);
    let users = users();
    let mounts: Vec<Vec<Mount>> = providers
        .iter()
        .map(|provider| {
            let mount = server.mount(*provider);
            users.iter().map(|user| mount.as_user(user.clone())).collect()
        })
        .collect();
    let mut local = Local::new();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut paths = Paths::default();
    let mut files = Vec::new();
    let mut history = Vec::new();
    for at in 0..OPERATIONS {
        let user = random.usize(..users.len());
        let operation = Operation::any(&mut random, &mut paths, files.len());
        let mount = random.usize(..mounts.len());
        let expected = local.run(&operation, &users[user]);
        let found = operation.run(&mounts[mount][user], &mut files);
        let step = format!("mount {mount} user {}: {operation:?} -> {expected:?}", users[user].uid);
        history.push(step.chars().take(200).collect::<String>());
        if found != expected {
            let last = history.len().saturating_sub(25);
            panic!(
                "seed {seed}, operation {at} over {providers:?}:\n{}\nbut found {:.200}",
                history[last..].join("\n"),
                format!("{found:?}")
            );
        }
    }
    let tree = local.run(&Operation::Tree, &users[0]);
    assert!(matches!(&tree, Outcome::Tree(tree) if !tree.is_empty()));
    for mount in &mounts {
        assert_eq!(Operation::Tree.run(&mount[0], &mut Vec::new()), tree, "seed {seed}");
    }
}

fn seeds() -> Vec<u64> {
    match std::env::var("RFS_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => vec![42, fastrand::u64(..)],
    }
}

#[test]
fn mounts_over_shared_memory_are_one_file_system() {
    seeds().into_iter().for_each(|seed| run(&[ProviderKind::Shm; 3], seed, false));
}

#[test]
fn mounts_over_tcp_are_one_file_system() {
    seeds().into_iter().for_each(|seed| run(&[ProviderKind::Tcp; 2], seed, false));
}

#[test]
fn mounts_over_both_are_one_file_system() {
    let both = [ProviderKind::Shm, ProviderKind::Tcp];
    seeds().into_iter().for_each(|seed| run(&both, seed, false));
}

#[test]
fn mounts_with_checksums_are_one_file_system() {
    let both = [ProviderKind::Tcp, ProviderKind::Shm];
    seeds().into_iter().for_each(|seed| run(&both, seed, true));
}
