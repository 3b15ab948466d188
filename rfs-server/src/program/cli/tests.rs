//! The options of the command line, and the configuration that they become.

use std::{path::PathBuf, time::Duration};

use clap::{CommandFactory, Parser};
use rdmabox::{Address, Fencing, tls::TlsServerFiles};

use super::Cli;
use crate::{
    metadata::root::Root,
    server::{
        config::{Config, Persist},
        export_config::ExportConfig,
        prefault::Prefault,
        stores::Membership,
    },
};

#[test]
fn the_option_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn options_become_configuration() {
    let cli = Cli::try_parse_from([
        "rfs-server",
        "--memory=2G",
        "--inodes=77",
        "--memory-dir=/dev/shm/x",
        "--name=x",
        "--root-mode=1777",
        "--prefault=never",
        "--lease=7",
        "--recall-timeout=3",
        "--busy-poll-us=30",
        "--keep-stragglers",
        "--allow-without-keys",
    ])
    .unwrap();
    let config = cli.into_config();
    assert_eq!((config.memory, config.inodes, config.name.as_str()), (2 << 30, Some(77), "x"));
    assert_eq!(config.memory_dir, Some("/dev/shm/x".into()));
    assert_eq!((config.root.perm, config.prefault), (0o1777, Prefault::Never));
    assert_eq!(config.fencing, Fencing::new(Duration::from_secs(7), false));
    assert_eq!(
        (config.effective_recall_timeout(), config.look),
        (Duration::from_secs(3), Duration::from_micros(30))
    );
    assert!(config.allow_without_keys);
    assert_eq!(config.listen, crate::server::config::default_listen());
    let prefault = |args: &[&str]| {
        Cli::try_parse_from([&["rfs-server", "--memory=1G"], args].concat()).unwrap().prefault
    };
    assert_eq!((prefault(&[]), prefault(&["--prefault"])), (Prefault::Background, Prefault::First));
    let plain = Cli::try_parse_from(["rfs-server", "--memory=1G"]).unwrap().into_config();
    assert_eq!((plain.fencing, plain.look), (Config::new(0).fencing, Config::new(0).look));
    assert_eq!(plain.effective_recall_timeout(), crate::server::config::DEFAULT_RECALL_TIMEOUT);
    assert!(Cli::try_parse_from(["rfs-server"]).is_err());
    assert!(Cli::try_parse_from(["rfs-server", "--memory=1G", "--inodes=0"]).is_err());
}

#[test]
fn sockets_get_absolute_paths() {
    let parse = |address: &str| {
        let cli = Cli::try_parse_from(["rfs-server", "--memory=1G", "--listen", address]).unwrap();
        cli.into_config().listen.remove(0)
    };
    let here = std::env::current_dir().unwrap();
    for address in ["./x.sock", "unix:x.sock", "unix:./x.sock"] {
        assert_eq!(parse(address), Address::Unix(here.join("x.sock")), "{address}");
    }
    assert_eq!(parse("/run/x.sock"), Address::Unix("/run/x.sock".into()));
    assert_eq!(parse("h:1"), Address::Tcp { host: "h".into(), port: 1 });
}

#[test]
fn snapshots() {
    let parse = |rest: &[&str]| {
        Cli::try_parse_from([&["rfs-server", "--memory=1G"], rest].concat())
            .map(|cli| cli.into_config().persist)
    };
    assert_eq!(parse(&[]).unwrap(), None);
    assert_eq!(parse(&["--persist=/x"]).unwrap(), Some(Persist::new("/x".into())));
    let persist = |every, keep| Some(Persist { dir: "/x".into(), every, keep });
    assert_eq!(
        parse(&["--persist=/x", "--persist-every=none", "--persist-keep=5"]).unwrap(),
        persist(None, 5)
    );
    let minute = Some(Duration::from_secs(60));
    assert_eq!(parse(&["--persist=/x", "--persist-every=60"]).unwrap(), persist(minute, 2));
    for wrong in ["--persist-every=0", "--persist-every=x", "--persist-every=-1", "--persist-keep=1"] {
        assert!(parse(&["--persist=/x", wrong]).is_err(), "{wrong}");
    }
    assert!(parse(&["--persist-every=60"]).is_err());
}

#[test]
fn keys_exclude_access_without_keys() {
    let args = |rest: &[&str]| Cli::try_parse_from([&["rfs-server"], rest].concat());
    let cli = args(&["--memory=1G", "--keys=/k"]).unwrap();
    assert_eq!(cli.into_config().keys, Some("/k".into()));
    assert!(args(&["--memory=1G", "--keys=/k", "--allow-without-keys"]).is_err());
    assert!(args(&["--new-key=tv,ro"]).unwrap().access.new_key.is_some());
    assert!(args(&["--new-key=t v"]).is_err());
}

#[test]
fn a_certificate_comes_with_its_private_key() {
    let args = |rest: &[&str]| Cli::try_parse_from([&["rfs-server", "--memory=1G"], rest].concat());
    let tls = |rest: &[&str]| args(rest).unwrap().into_config().tls;
    let files = TlsServerFiles::new("/c", "/k");
    assert_eq!(tls(&[]), None);
    assert_eq!(tls(&["--tls-cert=/c", "--tls-key=/k"]), Some(files.clone()));
    let all = ["--tls-cert=/c", "--tls-key=/k", "--tls-client-ca=/a"];
    assert_eq!(tls(&all), Some(files.with_client_ca("/a")));
    for half in [&all[..1], &all[1..2], &all[2..], &all[1..]] {
        assert!(args(half).is_err(), "{half:?}");
    }
}

#[test]
fn a_pool_key_is_for_a_store_or_for_a_server_with_stores() {
    let args = |rest: &[&str]| Cli::try_parse_from([&["rfs-server", "--memory=1G"], rest].concat());
    let stores = |rest: &[&str]| args(rest).unwrap().into_config().stores;
    let key = "--pool-key=/k";
    assert!(args(&["--store", key]).unwrap().pool.store);
    let both = stores(&["--store-at=tcp:a:1,tcp:b:2", key, "--stripe-unit=8k"]).expect("stores");
    assert_eq!((both.unit, both.key), (8192, PathBuf::from("/k")));
    assert!(matches!(both.members, Membership::Addresses(addresses) if addresses.len() == 2));
    let file = stores(&["--pool=/p", key]).expect("stores");
    assert_eq!((file.members, file.unit), (Membership::File("/p".into()), 256 << 10));
    let etcd = ["--registry=http://a:2379,http://b:2379/", key];
    let registered = stores(&etcd).expect("stores").members;
    let Membership::Etcd(urls) = registered else { panic!("{registered:?}") };
    assert_eq!(urls.iter().map(ToString::to_string).collect::<Vec<_>>(), ["http://a:2379", "http://b:2379"]);
    let store = [&etcd[..], &["--store", "--register-as=tcp:a:1"]].concat();
    assert_eq!((stores(&store), args(&store).unwrap().pool.registry.len()), (None, 2));
    for wrong in [
        &["--registry=http://a:2379"][..],
        &["--registry=http://a:2379", key, "--pool=/p"],
        &["--registry=http://a:2379", key, "--store-at=tcp:a:1"],
        &["--registry=https://a:2379", key],
        &["--registry=http://a:2379", key, "--register-as=tcp:a:1"],
        &["--store", key, "--register-as=tcp:a:1"],
        &[key],
        &["--store"],
        &["--store-at=tcp:a:1"],
        &["--store", key, "--store-at=tcp:a:1"],
        &["--pool=/p"],
        &["--pool=/p", key, "--store-at=tcp:a:1"],
        &["--pool=/p", key, "--store"],
    ] {
        assert!(args(wrong).is_err(), "{wrong:?}");
    }
    let error = args(&[key]).unwrap_err().to_string();
    assert!(error.contains("--store") && error.contains("--store-at"), "{error}");
}

#[test]
fn exports_take_the_place_of_memory() {
    let args = |rest: &[&str]| Cli::try_parse_from([&["rfs-server"], rest].concat());
    let config = args(&["--export=a=2M", "--export=b=3M,inodes=9,root-mode=1777"]).unwrap().into_config();
    let exports = config.exports();
    let root = |perm| Root { perm, ..config.root };
    let export = |name: &str, memory: u64, inodes, perm| ExportConfig {
        name: name.into(),
        memory: memory << 20,
        max: None,
        inodes,
        root: root(perm),
        eviction: Default::default(),
    };
    assert_eq!(exports, [export("a", 2, None, 0o755), export("b", 3, Some(9), 0o1777)]);
    let growing = args(&["--memory=1G", "--max-memory=4G"]).unwrap().into_config().exports();
    assert_eq!(growing[0].max, Some(4 << 30));
    for rest in ["--memory=1G", "--max-memory=1G", "--inodes=7", "--name=x", "--root-mode=700"] {
        assert!(args(&["--export=a=2M", rest]).is_err(), "{rest}");
    }
}
