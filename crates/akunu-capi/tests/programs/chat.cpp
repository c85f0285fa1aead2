// Handles as objects, callbacks as lambdas; a seeded answer to a conversation, printed twice, one per line.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "check.h"

struct Free {
    void operator()(akunu_model *model) const { OK(akunu_free_model(model)); }
    void operator()(akunu_session *session) const { OK(akunu_free_session(session)); }
};

template <typename Listen>
static int32_t listen(const akunu_piece *piece, void *user) {
    return (*static_cast<Listen *>(user))(std::string(piece->text, piece->text_length));
}

static std::string answer(akunu_session *session, const std::vector<uint32_t> &prompt, const char *stop) {
    akunu_generate_options options{};
    options.size = sizeof options;
    options.max_tokens = 40;
    options.stop_texts = &stop;
    options.stop_text_count = stop ? 1 : 0;
    akunu_stats stats{};
    stats.size = sizeof stats;
    std::string text;
    auto append = [&](const std::string &piece) { return text += piece, AKUNU_CONTINUE; };
    OK(akunu_generate(session, prompt.data(), prompt.size(), &options, listen<decltype(append)>, &append, &stats));
    CHECK(!stop || stats.finish == AKUNU_FINISH_STOP_TEXT);
    return text;
}

int main() {
    std::unique_ptr<akunu_model, Free> model(load(1));
    akunu_session *made = nullptr;
    OK(akunu_create_session(model.get(), &made));
    std::unique_ptr<akunu_session, Free> session(made);

    const char *conversation = "[{\"role\": \"user\", \"content\": \"tell me a story about a fox\"}]";
    std::vector<uint32_t> prompt(512);
    size_t count = 0;
    OK(akunu_encode_chat(model.get(), conversation, nullptr, 1, prompt.data(), prompt.size(), &count));
    prompt.resize(count);
    std::vector<char> text(4096);
    OK(akunu_apply_template(model.get(), conversation, nullptr, 1, text.data(), text.size(), &count));
    CHECK(std::string(text.data(), count).find("about a fox") != std::string::npos);

    akunu_sampling sampling{};
    sampling.size = sizeof sampling;
    OK(akunu_get_sampling(session.get(), &sampling));
    sampling.seed = 7;
    sampling.top_k = 20;
    sampling.temperature = 0.8f;
    sampling.repeat_penalty = 1.1f;
    sampling.repeat_last_n = 32;
    OK(akunu_set_sampling(session.get(), &sampling));
    OK(akunu_get_sampling(session.get(), &sampling));
    CHECK(sampling.temperature == 0.8f && sampling.repeat_penalty == 1.1f && sampling.repeat_last_n == 32);

    std::string whole = answer(session.get(), prompt, nullptr);
    std::cout << whole << "\n" << answer(session.get(), prompt, nullptr) << "\n";
    std::string stop = whole.substr(whole.size() / 2, 3);
    CHECK(answer(session.get(), prompt, stop.c_str()) == whole.substr(0, whole.find(stop)));
}
