use super::*;

fn problem(text: &str, variables: &[(&str, &str)]) -> String {
    let environment = variables.iter().copied().collect();
    match Config::from_text("weir.toml", text, &environment) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_mistake_in_a_file_has_its_place_field_and_fix() {
    let cases = [
        (
            "[listen]\nadnim = \"127.0.0.1:1\"",
            "weir.toml:2:1: listen.adnim: unknown field `adnim`; write one of `gateway`, `admin`, `probes`, \
             `certificate_file`, `key_file`",
        ),
        (
            "[gatewey]",
            "weir.toml:1:2: gatewey: unknown field `gatewey`; write one of `process`, `listen`, `listener`, `gateway`, \
             `upstream`, `log`, `ledger`, `control`, `quota`, `reconciler`, `secrets`, `telemetry`",
        ),
        (
            "[gateway]\n\n  max_body = 33",
            "weir.toml:3:14: gateway.max_body: `33` has no unit; write for example \"33KiB\" (units: GiB, MiB, KiB, B)",
        ),
        (
            "[secrets]\npepper = \"sk-planted\"",
            "weir.toml:2:10: secrets.pepper: a secret is written as a reference, \"env:NAME\" or \"file:PATH\", never as \
             the secret itself",
        ),
        ("[secrets]\npepper = 5", "weir.toml:2:10: secrets.pepper: it has the wrong type; write a string"),
        (
            "[listen]\ngateway = \"nowhere\"",
            "weir.toml:2:11: listen.gateway: it is no address with a port; write for example \"127.0.0.1:8080\"",
        ),
        ("[log", "weir.toml:1:5: configuration: unclosed table, expected `]`"),
        ("listen = 3", "weir.toml:1:10: listen: it has the wrong type; write a table of fields"),
        (
            "[process]\nworker_threads = \"four\"",
            "weir.toml:2:18: process.worker_threads: it has the wrong type; write a whole number",
        ),
        (
            "[telemetry]\nformat = \"xml\"",
            "weir.toml:2:10: telemetry.format: unknown variant `xml`; write `text` or `json`",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(text, &[]), expected, "{text}");
    }
}

#[test]
fn fields_must_fit_each_other() {
    let cases = [
        (
            "[process]\nworker_threads = 0",
            "weir.toml:2:1: process.worker_threads: it is not between 1 and 1023; leave it out for one thread per core",
        ),
        (
            "[listen]\nadmin = \"0.0.0.0:81\"",
            "weir.toml:2:1: listen.admin: 0.0.0.0:81 is no loopback address, and the admin API speaks plain HTTP; listen \
             on 127.0.0.1, and reach it through a tunnel",
        ),
        (
            "[listen]\ncertificate_file = \"a.pem\"",
            "weir.toml:2:1: listen.certificate_file: there is no key to it; set `key_file` in [listen] as well",
        ),
        (
            "[gateway]\nregion = \"eu/west\"",
            "weir.toml:2:1: gateway.region: `eu/west` is no region; use 1 to 64 letters, digits and dashes",
        ),
        (
            "[gateway]\nlease = \"3s\"\nrenew_every = \"2s\"",
            "weir.toml:3:1: gateway.renew_every: a lease of 3s has no room for two renewals, 2s apart; make it a third of \
             `lease`",
        ),
        (
            "[listener]\ndrain = \"50s\"",
            "weir.toml:2:1: listener.drain: a stream may go on for 50s after the stop began, but its lease ends after \
             40s; make it shorter, or `lease` in [gateway] longer",
        ),
        (
            "[gateway]\nlease = \"2m\"",
            "weir.toml: reconciler.lease: the reconciler takes leases of 1m for granted, the gateway gives 2m; write the \
             same duration in both sections",
        ),
        (
            "[log]\nsegment = \"1KiB\"",
            "weir.toml:2:1: log.segment: it is smaller than 64KiB; write for example \"64MiB\"",
        ),
        (
            "[ledger]\ncheckpoints_kept = 0",
            "weir.toml:2:1: ledger.checkpoints_kept: with 0 nothing would ever be done; write for example 3",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(text, &[]), expected, "{text}");
    }
}

#[test]
fn a_variable_overrides_the_file_and_is_named_in_its_errors() {
    let file = "[process]\nworker_threads = 2\n[gateway]\nregion = \"eu\"";
    let environment = [
        ("WEIR_PROCESS__WORKER_THREADS", "5"),
        ("WEIR_GATEWAY__REGION", "7"),
        ("WEIR_LISTEN__GATEWAY", "127.0.0.1:0"),
        ("WEIR_SECRETS__PEPPER", "env:PEPPER"),
        ("WEIR_ADMIN_URL", "not a field, and no mistake"),
        ("PATH", "/usr/bin"),
    ];
    let config = Config::from_text("weir.toml", file, &environment.into_iter().collect()).unwrap();
    assert_eq!(config.process.worker_threads, Some(5), "a number where one is wanted");
    assert_eq!(config.gateway.region, "7", "a text where one is wanted");
    assert_eq!(config.listen.gateway.port(), 0);
    assert_eq!(config.secrets.pepper.map(|reference| reference.to_string()), Some("env:PEPPER".to_owned()));

    let cases = [
        (
            ("WEIR_GATEWAY__MAX_BODY", "33"),
            "WEIR_GATEWAY__MAX_BODY: gateway.max_body: `33` has no unit; write for example \"33KiB\" (units: GiB, MiB, \
             KiB, B)",
        ),
        (
            ("WEIR_LISTEN__ADNIM", "x"),
            "WEIR_LISTEN__ADNIM: listen.adnim: unknown field `adnim`; write one of `gateway`, `admin`, \
             `probes`, `certificate_file`, `key_file`",
        ),
        (
            ("WEIR_LISTEN__ADMIN", "10.0.0.1:3"),
            "WEIR_LISTEN__ADMIN: listen.admin: 10.0.0.1:3 is no loopback address, and the admin API speaks plain HTTP; \
             listen on 127.0.0.1, and reach it through a tunnel",
        ),
        (
            ("WEIR_SECRETS__PEPPER", "sk-planted"),
            "WEIR_SECRETS__PEPPER: secrets.pepper: a secret is written as a reference, \"env:NAME\" or \"file:PATH\", \
             never as the secret itself",
        ),
    ];
    for (variable, expected) in cases {
        assert_eq!(problem(file, &[variable]), expected);
    }
}

#[test]
fn what_is_printed_is_read_back_the_same() {
    let text = "[gateway]\nregion = \"eu-1\"\n[secrets]\nadmin_token = \"env:TOKEN\"\n[log]\nsegment = \"1MiB\"";
    let config = Config::from_text("weir.toml", text, &Environment::default()).unwrap();
    let printed = config.to_toml().unwrap();
    assert_eq!(Config::from_text("printed", &printed, &Environment::default()).unwrap(), config);
    assert!(printed.contains("admin_token = \"env:TOKEN\""), "a reference, never the secret:\n{printed}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("weir.toml");
    let error = Config::load(Some(&missing), &Environment::default()).unwrap_err().to_string();
    let expected = format!(
        "{} cannot be read: No such file or directory (os error 2); name another file with --config, or leave it out for \
         the defaults",
        missing.display()
    );
    assert_eq!(error, expected);

    std::fs::write(&missing, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(matches!(Config::load(Some(&missing), &Environment::default()), Err(ConfigError::TooLarge { .. })));
}

#[test]
fn the_published_schema_is_the_one_of_this_program() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/config/weir.schema.json");
    let published = std::fs::read_to_string(path).unwrap();
    let current = crate::config::json_schema().unwrap();
    assert_eq!(published, current, "run `weir check-config --schema > schemas/config/weir.schema.json`");
}
