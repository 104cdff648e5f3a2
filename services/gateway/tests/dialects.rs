//! Chat and messages, in and out: all four pairs, plain and streamed, and what each API's clients are told of errors.

use crate::support::canned::{Canned, Ending, Reply};
use crate::support::pairs::{Client, PAIRS, Story};
use crate::support::{House, Setup};
use weir_domain::registry::ProviderDialect;
use weir_domain::reservation::ReservationStatus;

/// A house before canned providers, one a tier, of these APIs.
async fn house(canned: &[&Canned], speak: Vec<ProviderDialect>) -> House {
    let providers = canned.iter().map(|provider| provider.url()).collect();
    House::build(Setup { tiers: Vec::new(), providers, speak, ..Setup::default() }).await
}

#[tokio::test]
async fn all_pairs_carry_text_and_tools_and_charge_what_the_provider_says() {
    let story = Story::default();
    for pair in PAIRS {
        for stream in [false, true] {
            let reply = if stream {
                Reply::stream(story.stream(pair.provider))
            } else {
                Reply::json(story.answer(pair.provider))
            };
            let provider = Canned::start(reply).await;
            let house = house(&[&provider], vec![pair.provider]).await;
            let read = house.send(pair.client.request(&house, stream)).await;
            read.told(pair.client, stream).assert_whole(&story);
            let reservation = house.reservation_of(&read).await;
            assert_eq!(reservation.status(), ReservationStatus::Settled, "{pair:?}");
            assert_eq!(reservation.charged().tokens, story.tokens(), "{pair:?}");
            let asked = provider.asked();
            let (target, credential) = match pair.provider {
                ProviderDialect::Openai => ("/v1/chat/completions", "authorization"),
                ProviderDialect::Anthropic => ("/v1/messages", "x-api-key"),
            };
            assert_eq!(asked[0].target, target, "{pair:?}");
            assert_eq!(
                asked[0].header(credential),
                "",
                "o41: this provider has no credential, and gets no key of ours"
            );
            assert_eq!(asked[0].json()["model"], "vendor/model-0");
            house.assert_at_rest().await;
        }
    }
}

#[tokio::test]
async fn o11_a_stream_that_breaks_says_so_in_the_clients_words_and_stays_held() {
    let story = Story::default();
    for pair in PAIRS {
        let events = story.events(pair.provider);
        let at = events.iter().position(|event| event.contains("see…")).unwrap() + 1;
        for (ending, reason) in [(Ending::Close, "transport_error"), (Ending::Whole, "stream_incomplete")] {
            let provider = Canned::start(Reply::stream(events[..at].concat()).ending(ending)).await;
            let house = house(&[&provider], vec![pair.provider]).await;
            let read = house.send(pair.client.request(&house, true)).await;
            let told = read.told(pair.client, true);
            let error = told.broken();
            assert_eq!(
                (error["reason"].as_str(), error["chunks_delivered"].as_u64()),
                (Some(reason), Some(2)),
                "{pair:?}"
            );
            assert_eq!((told.text.as_str(), told.finish.as_deref()), ("Let me see…", None));
            let reservation = house.reservation_of(&read).await;
            assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation, "{pair:?}");
        }
    }
}

#[tokio::test]
async fn o09_before_content_the_next_deployment_answers_whatever_its_api() {
    let story = Story::said(&["from", " b"]);
    for client in Client::BOTH {
        for (first, second) in [
            (ProviderDialect::Openai, ProviderDialect::Anthropic),
            (ProviderDialect::Anthropic, ProviderDialect::Openai),
        ] {
            let preamble = Story::default().events(first)[0].clone();
            let one = Canned::start(Reply::stream(preamble).ending(Ending::Reset)).await;
            let other = Canned::start(Reply::stream(story.stream(second))).await;
            let house = house(&[&one, &other], vec![first, second]).await;
            let read = house.send(client.request(&house, true)).await;
            read.told(client, true).assert_whole(&story);
            assert_eq!((read.header("x-weir-attempts"), one.asked().len(), other.asked().len()), ("2", 1, 1));
        }
    }
}
