//! Catalogs that are wrong, each with the exact message: place, field, problem and fix.

use super::*;

/// 2026-11-29.
const NOW_MS: i64 = 1_795_910_400_000;

pub(super) const GOOD: &str = r#"[[provider]]
id = "p"
dialect = "openai_chat"
base_url = "http://127.0.0.1:8080/v1"

[[deployment]]
id = "d"
provider = "p"
model = "gpt-4o-mini"
max_output_tokens = 1000

[[model]]
name = "m"
deployments = ["d"]

[[tenant]]
name = "t"
"#;

pub(super) fn read(text: &str) -> Result<Catalog, CatalogProblems> {
    let shipped = crate::prices::shipped_prices().unwrap();
    let admin_keys = BTreeSet::from([("t".to_owned(), "made".to_owned())]);
    let surroundings =
        Surroundings { file: "catalog.toml", shipped_prices: &shipped, admin_keys: &admin_keys, now_ms: NOW_MS };
    Catalog::from_toml(text, surroundings)
}

pub(super) fn problems(text: &str) -> String {
    read(text).expect_err(text).to_string()
}

/// What is said about the good catalog with each addition behind it, which begins on line 19.
#[track_caller]
fn added(cases: &[(&str, &str)]) {
    for (addition, expected) in cases {
        assert_eq!(problems(&format!("{GOOD}\n{addition}")), *expected, "{addition}");
    }
}

#[test]
fn what_is_no_catalog_at_all() {
    added(&[
        (
            "x = 1",
            "catalog.toml:19:1: tenant.x: unknown field `x`; write one of `name`, `zone`, `models`, `regions`, `providers`, `denied_tools`, `on_report_mismatch`, `on_ceiling`",
        ),
        (
            "[[provder]]
id = 1",
            "catalog.toml:19:3: catalog: unknown table `provder`; write [[provider]], [[deployment]], [[model]], [[tenant]], [[team]], [[limit]], [[key]] or [[price]]",
        ),
        (
            r#"[tenant]
name="x""#,
            "catalog.toml:19:2: catalog: duplicate key",
        ),
        ("[[tenant]]", "catalog.toml:19:1: tenant: missing field `name`; add `name` to this [[tenant]]"),
        (
            r#"[[tenant]]
name = "a"
zon = "UTC""#,
            "catalog.toml:21:1: tenant.zon: unknown field `zon`; write one of `name`, `zone`, `models`, `regions`, `providers`, `denied_tools`, `on_report_mismatch`, `on_ceiling`",
        ),
        (
            "[[tenant]]
name = 3",
            "catalog.toml:20:8: tenant.name: invalid type: integer `3`; write a string, in quotes",
        ),
        (
            r#"[[tenant]]
name = "a"
models = ["x"]
regions=["mars"]
providers=["q"]
on_ceiling = "guess""#,
            "catalog.toml:24:14: tenant.on_ceiling: unknown variant `guess`; write `person` or `estimate`",
        ),
        (
            r#"[[provider]]
id = "q
dialect = "openai_chat"
[["#,
            r#"catalog.toml:20:8: catalog: invalid basic string, expected `"`
catalog.toml:22:3: catalog: unquoted keys cannot be empty, expected letters, numbers, `-`, `_`"#,
        ),
    ]);
}

#[test]
fn names_are_unique_and_exist() {
    added(&[
        (
            r#"[[tenant]]
name = "a"
zone = "Mars""#,
            r#"catalog.toml:21:8: tenant.zone: `Mars` is not a time zone; write a name of the IANA database, such as "Europe/Berlin" or "UTC""#,
        ),
        (
            r#"[[tenant]]
name = "t""#,
            "catalog.toml:20:1: tenant.name: `t` is there already, on line 17; rename one, or remove it",
        ),
        (
            r#"[[tenant]]
name = "a b""#,
            "catalog.toml:20:1: tenant.name: `a b` is no name; use 1 to 128 letters, digits and any of `. _ - : / @ +`, beginning with a letter or digit",
        ),
        (
            r#"[[tenant]]
name = "a"
models = ["x"]
regions=["mars"]
providers=["q"]"#,
            "catalog.toml:21:1: tenant.models: there is no model `x`; write one of `m`, or add it
catalog.toml:22:1: tenant.regions: there is no deployment in region `mars`; write one of `global`, or add it
catalog.toml:23:1: tenant.providers: there is no provider `q`; write one of `p`, or add it",
        ),
        (
            r#"[[team]]
tenant="x"
name="a""#,
            "catalog.toml:20:1: team.tenant: there is no tenant `x`; write one of `t`, or add it",
        ),
    ]);
}

#[test]
fn limits_count_what_can_be_counted() {
    added(&[
        (
            r#"[[limit]]
tenant = "t"
kind = "usd per month"
max = 5"#,
            r#"catalog.toml:22:1: limit.max: money is text; write max = "5""#,
        ),
        (
            r#"[[limit]]
tenant = "t"
kind = "usd per month"
max = 5.5"#,
            r#"catalog.toml:22:7: limit.max: invalid type: floating point `5.5`; write an integer, or for money a decimal string such as "100.50""#,
        ),
        (
            r#"[[limit]]
tenant = "t"
kind = "usd per month"
max = "-5""#,
            "catalog.toml:22:1: limit.max: a limit cannot be negative; write 0 to admit nothing",
        ),
        (
            r#"[[limit]]
tenant = "t"
kind = "usd per month"
max = "1e3""#,
            r#"catalog.toml:22:1: limit.max: `1e3` is not a decimal amount; write dollars as digits with an optional fraction, such as "0.105""#,
        ),
        (
            r#"[[limit]]
tenant = "t"
kind = "usd per minute"
max = "5""#,
            r#"catalog.toml:21:8: limit.kind: money has no rate per minute; write "usd per day", or limit tokens per minute"#,
        ),
        (
            r#"[[limit]]
tenant = "t"
kind = "tokens per fortnight"
max = 5"#,
            r#"catalog.toml:21:8: limit.kind: `tokens per fortnight` is no kind of limit; write "usd|tokens|requests per day|week|month|total", "tokens|requests per minute" or "concurrent""#,
        ),
        (
            r#"[[limit]]
tenant = "t"
kind = "requests per day"
max = "5""#,
            "catalog.toml:22:1: limit.max: `5` is text, but requests per day are counted; write it as an integer without quotes, such as max = 1_000",
        ),
        (
            r#"[[limit]]
tenant = "t"
key = "nobody"
kind = "concurrent"
max = 5"#,
            "catalog.toml:21:1: limit.key: tenant `t` has no key `nobody`; write one of `made`, or add it",
        ),
        (
            r#"[[limit]]
tenant = "t"
team = "x"
key = "made"
kind = "concurrent"
max = 5"#,
            "catalog.toml:21:1: limit.team: tenant `t` has no team `x`; add the team, or remove the reference
catalog.toml:22:1: limit.key: it names a team and a key; keep one: a key's limit counts the key alone",
        ),
        (
            r#"[[limit]]
tenant = "t"
model = "zz"
kind = "concurrent"
max = -5"#,
            "catalog.toml:21:1: limit.model: there is no model `zz`; write one of `m`, or add it
catalog.toml:23:1: limit.max: a limit cannot be negative; write 0 to admit nothing",
        ),
        (
            r#"[[limit]]
tenant = "t"
kind = "concurrent"
max = 5
[[limit]]
tenant = "t"
kind = "concurrent"
max = 6"#,
            "catalog.toml:23:1: limit: the same is limited on line 19; keep the one that you mean",
        ),
    ]);
}

#[test]
fn keys_come_as_hashes_and_belong_to_somebody() {
    added(&[
        (
            r#"[[key]]
name = "k"
tenant = "t"
hash = "abababababababababababababababababababababababababababababababab"
team = "x"
models=["x"]"#,
            "catalog.toml:23:1: key.team: tenant `t` has no team `x`; add the team, or remove the reference
catalog.toml:24:1: key.models: there is no model `x`; write one of `m`, or add it",
        ),
        (
            r#"[[key]]
name = "k"
tenant = "t"
hash = "weir_live_secret""#,
            "catalog.toml:22:8: key.hash: a key is written as its hash, 64 hexadecimal digits, never as the key itself",
        ),
        (
            r#"[[key]]
name = "k"
tenant = "t"
hash = "abababababababababababababababababababababababababababababababab"
[[key]]
name = "k2"
tenant = "t"
hash = "abababababababababababababababababababababababababababababababab""#,
            "catalog.toml:26:1: key.hash: the same key is there already, on line 22; rename one, or remove it",
        ),
        (
            r#"[[key]]
name = "k"
tenant = "t"
hash = "abababababababababababababababababababababababababababababababab"
expires_at = "soon""#,
            r#"catalog.toml:23:14: key.expires_at: `soon` is neither a date ("2026-10-01") nor a time with its offset ("2026-10-01T00:00:00Z")"#,
        ),
        (
            r#"[[key]]
name = "k"
tenant = "t"
hash = "abababababababababababababababababababababababababababababababab"
expires_at = 2026-01-01"#,
            "catalog.toml:23:14: key.expires_at: invalid type: map; write a string, in quotes",
        ),
        (
            r#"[[key]]
name = "k"
tenant = "t"
hash = "abababababababababababababababababababababababababababababababab"
labels = { "a b" = "x" }"#,
            "catalog.toml:23:1: key.labels: label `a b` has a name that is none, or is too long; names are like ids, values have at most 256 bytes",
        ),
    ]);
}

#[test]
fn a_model_for_embeddings_needs_no_output_cap_and_no_price_of_output() {
    let embedding = r#"
[[deployment]]
id = "e"
provider = "p"
model = "x"
capabilities = ["embeddings"]
[[price]]
name = "x"
[[price.terms]]
rates = { "in.uncached" = "1" }"#;
    let catalog = read(&format!("{GOOD}{embedding}")).unwrap();
    assert_eq!(catalog.deployments[1].max_output_tokens, 0);
    let generating = embedding.replace("embeddings", "tools");
    assert!(
        problems(&format!("{GOOD}{generating}")).contains("deployment.max_output_tokens: 0 is no number of tokens")
    );
}

#[test]
fn o21_what_has_no_price_is_refused_before_it_is_called() {
    added(&[
        (
            r#"[[deployment]]
id = "e"
provider = "p"
model = "new-model-x"
max_output_tokens = 10"#,
            r#"catalog.toml:22:1: deployment.model: no price is named `new-model-x`; add [[price]] with name = "new-model-x", or one with `free = true` if it costs nothing"#,
        ),
        (
            r#"[[deployment]]
id = "e"
provider = "p"
model = "x"
max_output_tokens = 10
[[price]]
name = "x"
[[price.terms]]
rates = { "in.uncached" = "1" }"#,
            r#"catalog.toml:22:1: deployment.model: the price `x` has no rate for `out.visible`; add "out.visible" to its `rates`: a request that uses it could not be charged"#,
        ),
        (
            r#"[[deployment]]
id = "e"
provider = "p"
model = "x"
max_output_tokens = 10
[[price]]
name = "x"
effective_from="2027-01-01"
free = true"#,
            "catalog.toml:22:1: deployment.model: no price named `x` is in force now; look at its `effective_from` and `effective_to`",
        ),
        (
            r#"[[price]]
name = "x"
[[price.terms]]
rates = { "in.uncachd" = "1" }"#,
            "catalog.toml:22:11: price.terms[0].rates.in.uncachd: unknown meter `in.uncachd`; write one of in.uncached, in.cache_read, in.cache_write.5m, in.cache_write.30m, in.cache_write.1h, in.cache_write.12h, in.cache_write.unk, in.audio, in.image, out.visible, out.reasoning, out.audio, out.image, tool.web_search, tool.web_fetch, tool.code_session, tool.search_unit, media.image, media.second",
        ),
        (
            r#"[[price]]
name = "x"
[[price.terms]]
rates = { "in.uncached" = 1.5 }"#,
            "catalog.toml:22:27: price.terms[0].rates.in.uncached: invalid type: floating point `1.5`; write a string, in quotes",
        ),
        (
            r#"[[price]]
name = "x"
[[price.terms]]
rates = { "in.uncached" = "-1" }"#,
            r#"catalog.toml:22:27: price.terms[0].rates.in.uncached: `-1` is not a decimal amount; write dollars as digits with an optional fraction, such as "0.105""#,
        ),
        (
            r#"[[price]]
name = "x""#,
            "catalog.toml:20:1: price.name: `x`: it has no rates; add [[price.terms]], or say `free = true`",
        ),
        (
            r#"[[price]]
name = "x"
free=true
[[price]]
name = "x"
free = true"#,
            "catalog.toml:23:1: price.name: `x`: two entries are in force at the same time; give them `effective_from` and `effective_to`",
        ),
    ]);
}

#[test]
fn models_have_deployments_and_sane_bounds() {
    added(&[
        (r#"[[model]]
name = "n""#,
         r#"catalog.toml:19:1: model.deployments: model `n` has no deployment; add `deployments = ["…"]` or `tiers`"#),
        (r#"[[model]]
name = "n"
deployments = ["d"]
tiers=[["d"],[]]"#,
         "catalog.toml:22:1: model.tiers: it has both `deployments` and `tiers`; keep one: `deployments` is short for a single tier
catalog.toml:22:1: model.tiers: deployment `d` is named twice; name it once, in the earliest tier that it belongs to"),
        (r#"[[model]]
name = "n"
tiers=[["d"],[]]
max_attempts = 0
stream_failure = { mode = "continue", on = ["read_timeout"], max_fallbacks = 9 }"#,
         "catalog.toml:21:1: model.tiers: a tier is empty; name a deployment or remove it
catalog.toml:22:1: model.max_attempts: 0 attempts; write 1 to 16
catalog.toml:23:1: model.stream_failure: 9 attempts to go on; write 1 to 4"),
        (r#"[[model]]
name = "n"
deployments=["d","d","zz"]
default_output_tokens = 2000
deadlines = { idle = "0s", connect = 5 }"#,
         r#"catalog.toml:23:38: model.deadlines.connect: `5` has no unit; write for example "5s" (units: d, h, m, s, ms)"#),
        (r#"[[model]]
name = "n"
deployments=["d","d","zz"]
default_output_tokens = 2000
deadlines = { idle = "0s", connect = "5s" }"#,
         r#"catalog.toml:21:1: model.deployments: deployment `d` is named twice; name it once, in the earliest tier that it belongs to
catalog.toml:21:1: model.deployments: there is no deployment `zz`; write one of `d`, or add it
catalog.toml:22:1: model.default_output_tokens: 2000 is above the 1000 of deployment `d`; lower it to what every deployment gives
catalog.toml:23:1: model.deadlines: `idle` is 0s; write more than nothing and at most "1d""#),
        (r#"[[model]]
name = "n"
deployments=["d"]
deadlines = { idl = "1s" }"#,
         "catalog.toml:22:15: model.deadlines.idl: unknown field `idl`; write one of `plain_total`, `stream_total`, `first_content`, `idle`, `connect`, `usage_after_finish`, `write_stall`"),
    ]);
}

#[test]
fn providers_and_deployments() {
    added(&[
        (
            r#"[[deployment]]
id = "e"
provider = "q"
model = "gpt-4o"
price = "nope"
max_output_tokens = 0
capabilities = ["vision"]"#,
            r#"catalog.toml:19:1: deployment.tokens_per_image: it can see pictures, but nothing bounds what one costs; add `tokens_per_image`: the most input tokens that one picture can be
catalog.toml:21:1: deployment.provider: there is no provider `q`; write one of `p`, or add it
catalog.toml:23:1: deployment.price: no price is named `nope`; add [[price]] with name = "nope", or one with `free = true` if it costs nothing
catalog.toml:24:1: deployment.max_output_tokens: 0 is no number of tokens; write 1 to 100000000"#,
        ),
        (
            r#"[[provider]]
id = "q"
dialect = "openai"
base_url = "https://x/"
credential="sk-123""#,
            r#"catalog.toml:23:12: provider.credential: a secret is written as a reference, "env:NAME" or "file:PATH", never as the secret itself"#,
        ),
        (
            r#"[[provider]]
id = "q"
dialect = "openai_chat"
base_url = "https://u:p@x/""#,
            r#"catalog.toml:22:1: provider.base_url: it carries a user; put the credential into `credential = "env:…"`"#,
        ),
        (
            r#"[[provider]]
id = "q"
dialect = "openai_chat"
base_url = "ftp://x/""#,
            r#"catalog.toml:22:1: provider.base_url: it is no http or https URL; write it in full, such as "https://api.openai.com/v1""#,
        ),
    ]);
}

#[test]
fn every_mistake_of_a_file_is_told_at_once_in_its_order() {
    let text = GOOD
        .replace("openai_chat", "smoke_signals")
        .replace("[\"d\"]", "[\"d\", \"e\"]")
        .replace("max_output_tokens = 1000", "max_output_tokens = -1");
    assert_eq!(
        problems(&text),
        "catalog.toml:3:11: provider.dialect: unknown variant `smoke_signals`; write one of `openai`, `openai_chat`, `anthropic`\n\
         catalog.toml:10:1: deployment.max_output_tokens: -1 is no number of tokens; write 1 to 100000000\n\
         catalog.toml:14:1: model.deployments: there is no deployment `e`; write one of `d`, or add it",
        "and the deployment of the provider that cannot be read is not told as well"
    );
}
