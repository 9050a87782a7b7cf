// A browser starts no worker for a page that was opened as a file. There, the worker of the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    #frame = document.createElement("iframe");
    // What was sent before the worker's script ran; null afterwards.
    #waiting = [];

    constructor(url) {
      super();
      this.#frame.hidden = true;
      this.#frame.srcdoc = "<!doctype html>";
      this.#frame.addEventListener("load", () => this.#run(url), { once: true });
      document.body.append(this.#frame);
    }

    postMessage(data) {
      if (this.#waiting) {
        this.#waiting.push(data);
      } else {
        this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      }
    }

    #run(url) {
      const { contentWindow, contentDocument } = this.#frame;
      contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = contentDocument.createElement("script");
      script.src = url;
      script.addEventListener("load", () => {
        const sent = this.#waiting;
        this.#waiting = null;
        sent.forEach((data) => this.postMessage(data));
      });
      contentDocument.body.append(script);
    }
  };
}
