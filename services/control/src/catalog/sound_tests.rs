//! Catalogs that are right: what stands for what they leave out, and the one that nobody has to write.

use super::check_tests::{GOOD, read};
use super::*;

#[test]
fn defaults_are_those_of_the_documentation_and_a_written_catalog_reads_back() {
    let catalog = read(GOOD).unwrap();
    let deployment = &catalog.deployments[0];
    assert_eq!((deployment.region.as_str(), deployment.price_name()), ("global", "gpt-4o-mini"));
    assert_eq!((deployment.tokens_per_kilobyte, deployment.accepts_stream_options), (1_000, true));
    assert_eq!((catalog.models[0].max_attempts, catalog.tenants[0].zone.to_string()), (3, "UTC".to_owned()));
    assert_eq!(read(&catalog.to_toml().unwrap()).unwrap(), catalog);
}

#[test]
fn the_quickstart_is_a_sound_catalog_of_everything_of_openai_that_has_a_price() {
    let credential = weir_runtime::secrets::SecretRef::Env("OPENAI_API_KEY".into());
    let catalog = Catalog::quickstart(credential, Some("http://127.0.0.1:9/v1/"));
    let text = catalog.to_toml().unwrap();
    let checked = read(&text).unwrap();
    assert_eq!(checked.providers[0].base_url, "http://127.0.0.1:9/v1");
    assert!(text.contains("credential = \"env:OPENAI_API_KEY\""), "{text}");
    let priced: BTreeSet<String> = crate::prices::shipped_prices()
        .unwrap()
        .into_iter()
        .filter(|price| price.source.as_deref().is_some_and(|source| source.contains("openai.com")))
        .map(|price| price.name)
        .collect();
    let named: BTreeSet<String> = checked.models.iter().map(|model| model.name.to_string()).collect();
    assert_eq!(named, priced);
}
