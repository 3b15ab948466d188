//! Tests of the command line.

use super::{options::DEFAULT_RECALL_TIMEOUT, *};
use crate::fuse::FOREVER;

fn args(line: &str) -> Args {
    Args::try_parse_from(line.split(' ')).expect("valid arguments")
}

#[test]
fn the_command_is_well_formed() {
    use clap::CommandFactory;
    Args::command().debug_assert();
}

#[test]
fn an_address_and_a_mount_point_are_parsed() {
    let a = args("rfs-fuse --max-write 128K host:7440 /mnt --threads 3");
    assert_eq!(a.address(), Ok(Some(Address::Tcp { host: "host".into(), port: 7440 })));
    assert_eq!(a.mount_point(), PathBuf::from("/mnt"));
    assert_eq!(a.source(), "host:7440");
    assert_eq!((a.settings().max_write, a.threads()), (128 << 10, 3));
}

#[test]
fn a_timeout_below_the_recall_timeout_causes_a_warning() {
    assert_eq!(rfs_server::config::DEFAULT_RECALL_TIMEOUT, DEFAULT_RECALL_TIMEOUT);
    let said = args("rfs-fuse a:1 /m --timeout 2.5").doubt().expect("a warning");
    for word in ["--timeout 2.5: ", "--timeout to more than 8,", "--recall-timeout to less than 2.5"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(args("rfs-fuse a:1 /m --timeout 8").doubt().is_some());
    assert_eq!(args("rfs-fuse a:1 /m --timeout 8.1").doubt(), None);
    assert_eq!(args("rfs-fuse a:1 /m").doubt(), None);
}

#[test]
fn null_needs_no_address() {
    let a = args("rfs-fuse --null /mnt");
    assert_eq!((a.address(), a.mount_point(), a.source()), (Ok(None), "/mnt".into(), "null".into()));
    assert_eq!(args("rfs-fuse --null ignored /mnt").mount_point(), PathBuf::from("/mnt"));
    assert_eq!(args("rfs-fuse /mnt").address(), Err(UsageError::Missing));
}

#[test]
fn every_switch_reaches_the_session() {
    let options = args(
        "rfs-fuse a:1 /m --provider tcp --queue-pairs 2 --window 3M --window-scope device --batch merge \
         --pre-mr-threshold 64K --polling event-batch --calls fetch --max-retry 9 --busy-poll-us 20 --timeout 2.5 --connect-timeout 7",
    )
    .session_options();
    assert_eq!(options.provider, Some(rdmabox::ProviderKind::Tcp));
    assert_eq!((options.queue_pairs, options.window_bytes), (2, 3 << 20));
    assert_eq!(options.window_scope, rdmabox::admission::WindowScope::Device);
    assert_eq!((options.batch, options.polling), (BatchMode::Merge, PollingMode::EventBatch));
    assert_eq!(options.calls, CallsBy::Fetch);
    assert_eq!((options.pre_mr_threshold, options.max_retry), (PreMrThreshold::Bytes(64 << 10), Some(9)));
    assert_eq!(options.engine_look, Duration::from_micros(20));
    assert_eq!(options.operation_timeout, Duration::from_millis(2500));
    assert_eq!(options.connect_timeout, Duration::from_secs(7));
}

#[test]
fn tls_is_for_tcp() {
    let files = |line: &str| args(line).tls();
    assert_eq!(files("rfs-fuse a:1 /m"), Ok(None));
    let plain = TlsClientFiles::new("/a");
    assert_eq!(files("rfs-fuse a:1 /m --tls-ca /a"), Ok(Some(plain.clone())));
    let all = "rfs-fuse --provider tcp a:1 /m --tls-ca /a --tls-name n --tls-cert /c --tls-key /k";
    assert_eq!(files(all), Ok(Some(plain.with_name("n").with_own("/c", "/k"))));
    for line in ["/run/x /m", "unix:x /m", "rdma:a:1 /m", "a:1 /m --provider shm"] {
        let refused = files(&format!("rfs-fuse {line} --tls-ca /a"));
        assert!(matches!(refused, Err(UsageError::Tls(_))), "{line}");
    }
    for half in ["--tls-name n", "--tls-ca /a --tls-cert /c", "--tls-ca /a --tls-key /k"] {
        let line = format!("rfs-fuse a:1 /m {half}");
        assert!(Args::try_parse_from(line.split(' ')).is_err(), "{half}");
    }
}

#[test]
fn cache_modes_set_what_the_kernel_caches() {
    let auto = args("rfs-fuse a:1 /m --attr-timeout 5").settings();
    assert_eq!((auto.keeps, auto.direct_io, auto.writeback), (true, false, false));
    assert_eq!((auto.attr_timeout, auto.entry_timeout), (Duration::from_secs(5), FOREVER));
    for none in ["--cache none", "--direct-io", "--cache none --attr-timeout 5"] {
        let args = args(&format!("rfs-fuse a:1 /m --export x {none}"));
        let none = args.settings();
        assert_eq!((none.keeps, none.direct_io, none.writeback), (false, true, false));
        assert_eq!((none.attr_timeout, none.entry_timeout), (Duration::ZERO, Duration::ZERO));
        let attach = args.attach_options();
        assert_eq!((&attach.export[..], attach.caches, attach.exclusive), ("x", false, false));
    }
    let args = args("rfs-fuse a:1 /m --cache writeback");
    let (settings, attach) = (args.settings(), args.attach_options());
    assert_eq!((settings.keeps, settings.direct_io, settings.writeback), (true, false, true));
    assert_eq!((settings.attr_timeout, settings.entry_timeout), (FOREVER, FOREVER));
    assert_eq!((attach.caches, attach.exclusive), (true, true));
}

#[test]
fn the_last_option_about_io_uring_counts() {
    for (options, meant) in [
        ("", IoUring::Auto),
        (" --io-uring=auto", IoUring::Auto),
        (" --io-uring=on", IoUring::On),
        // A value follows only an equals sign.
        (" --io-uring", IoUring::On),
        (" --io-uring=off", IoUring::Off),
        (" --no-io-uring", IoUring::Off),
        (" --no-io-uring --io-uring", IoUring::On),
        (" --io-uring --no-io-uring", IoUring::Off),
    ] {
        let args = args(&format!("rfs-fuse{options} a:1 /m"));
        assert_eq!((args.io_uring(), args.mount_point()), (meant, "/m".into()), "{options}");
    }
}

#[test]
fn bad_values_are_refused() {
    for line in [
        "rfs-fuse",
        "rfs-fuse a:1 /m --provider ib",
        "rfs-fuse a:1 /m --max-write 1K",
        "rfs-fuse a:1 /m --max-write 17M",
        "rfs-fuse a:1 /m --threads 0",
        "rfs-fuse a:1 /m --timeout 0",
        "rfs-fuse a:1 /m --attr-timeout -1",
        "rfs-fuse a:1 /m --window lots",
        "rfs-fuse a:1 /m --cache write",
        "rfs-fuse a:1 /m --io-uring=yes",
        "rfs-fuse a:1 /m extra",
    ] {
        assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn the_last_option_about_other_users_counts() {
    assert!(args("rfs-fuse a:1 /m --no-allow-other --allow-other").allow_other());
    assert!(!args("rfs-fuse a:1 /m --allow-other --no-allow-other").allow_other());
}

#[test]
fn the_background_process_gets_the_same_arguments() {
    let given = ["rfs-fuse", "--daemon", "a:1", "/m"].map(OsString::from);
    assert_eq!(detached_arguments(&given), ["--detached", "a:1", "/m"]);
}

/// The name of an option before it was renamed still works, also in a list of mount(8) options.
#[test]
fn busy_polling_has_its_earlier_name() {
    assert_eq!(
        args("rfs-fuse a:1 /m --look 7").session_options().engine_look,
        args("rfs-fuse a:1 /m --busy-poll-us 7").session_options().engine_look
    );
}
